"""Looking for good settings: studies, spaces, workers, reports. Called, it is the function of the same name."""

from drl.core import call_function_of

call_function_of(__name__, "drl.search.run_search")
