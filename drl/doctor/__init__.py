"""What is likely wrong with an environment or a run, and what to change. Called, it is the function `doctor`."""

from drl.core.callable_package import call_function_of

call_function_of(__name__, "drl.doctor.examine_run")
