"""Counters of a server, in Prometheus' text format."""

from collections import Counter

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)  # seconds


class ServeMetrics:
    """What was asked and how long it took.

    >>> metrics = ServeMetrics()
    >>> metrics.answered(200, 0.004)
    >>> [line for line in metrics.text(batches=1, rows=3).splitlines() if line[0] != "#"][:3]
    ['drl_serve_requests_total{code="200"} 1', 'drl_serve_in_flight 0', 'drl_serve_batches_total 1']
    """

    def __init__(self) -> None:
        self.in_flight = 0  # requests to act
        self._codes: Counter[int] = Counter()
        self._at_most = [0] * len(BUCKETS)  # answers that took at most so many seconds
        self._seconds = 0.0

    def answered(self, code: int, seconds: float) -> None:
        """Count an answer."""
        self._codes[code] += 1
        self._seconds += seconds
        for index, bound in enumerate(BUCKETS):
            self._at_most[index] += seconds <= bound

    @property
    def total(self) -> int:
        """Requests that were answered, refusals among them."""
        return self._codes.total()

    def text(self, batches: int, rows: int) -> str:
        """All numbers in the text form of Prometheus."""
        families = {
            "requests_total counter": [f'{{code="{code}"}} {self._codes[code]}' for code in sorted(self._codes)],
            "in_flight gauge": [f" {self.in_flight}"],
            "batches_total counter": [f" {batches}"],
            "observations_total counter": [f" {rows}"],
            "latency_seconds histogram": [
                *(f'_bucket{{le="{bound}"}} {n}' for bound, n in zip(BUCKETS, self._at_most, strict=True)),
                f'_bucket{{le="+Inf"}} {self.total}',
                f"_sum {self._seconds:.6f}",
                f"_count {self.total}",
            ],
        }
        lines = []
        for family, values in families.items():
            lines += [f"# TYPE drl_serve_{family}", *(f"drl_serve_{family.split()[0]}{value}" for value in values)]
        return "\n".join(lines) + "\n"
