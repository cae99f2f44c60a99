"""Makes this folder's helper module importable: pytest's importlib mode adds no paths by itself."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
