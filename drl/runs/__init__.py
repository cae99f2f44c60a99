"""How a run goes: built, trained, evaluated, saved, resumed, many at a time."""
