"""Likely problems of an environment or a run, and what to change. Calling this module calls the function `doctor`."""

from drl.core import call_function_of

call_function_of(__name__, "drl.doctor.diagnose")
