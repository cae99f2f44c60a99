"""Pages and plots of runs, as files and in a browser. Calling this module calls the function `report`."""

from drl.core import call_function_of

call_function_of(__name__, "drl.report.report_page")
