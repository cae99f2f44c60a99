"""Pages and pictures of runs, as files and in a browser. Called, it is the function of the same name."""

from drl.core.callable_package import call_function_of

call_function_of(__name__, "drl.report.one_file")
