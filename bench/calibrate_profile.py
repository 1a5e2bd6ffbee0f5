"""Profiles of functions, measured on a live platform."""

import statistics
from pathlib import Path
from typing import Any

import calibrate_live as live

ROOT = Path(__file__).resolve().parents[1]
# Of the calls that a profile is made of. P99 of a round is that of its cold starts: with one of
# them in the profile, that one would decide about all rounds.
COLD_STARTS, WARM_CALLS, BURSTS = 5, 30, 6


def measured(platform: live.Platform, name: str) -> dict[str, Any]:
    """Measure cold start, warm calls, clones and memory of one function."""
    colds = cold_starts(platform, name)
    cold_bytes = platform.function(name)["local_bytes"]
    platform.await_image(name)
    warm = [platform.counted_call(name) for _ in range(WARM_CALLS)]
    warm = [call for call in warm if call.start == "warm"]
    warm_us = [call.took_us for call in warm]
    median, warm_busy = statistics.median(warm_us), typical_busy(warm)
    excess, clones_busy = bursts(platform, name, median, warm_busy)
    function = platform.function(name)
    clones = max(function["instances"] - 1, 1)
    clone_bytes = max(function["local_bytes"] - cold_bytes, 0) // clones
    # Clones that find no attached ghost are rare; without any, the other kind has to do.
    known = excess["clone"] or excess["ghost"] or [0]
    return {
        "cold": round(max(statistics.median(call.took_us for call in colds) - median, 0)),
        "clone": round(statistics.median(known)),
        "ghost": round(statistics.median(excess["ghost"] or known)),
        "cold_bytes": max(cold_bytes, 1),
        "clone_bytes": min(clone_bytes, max(cold_bytes, 1)),
        "processor_us": processor_us(warm_busy, typical_busy(colds), clones_busy),
        "warm_us": warm_us,
    }


def bursts(
    platform: live.Platform, name: str, median: float, warm_busy: float | None
) -> tuple[dict[str, list[float]], list[float]]:
    """Call together, so that clones start.

    Return what they take beyond warm calls: time by kind, and processor time.
    """
    excess: dict[str, list[float]] = {"clone": [], "ghost": []}
    busy: list[float] = []
    for burst in range(2, 2 + BURSTS):
        before = platform.used_us()
        calls = platform.call_together(name, burst)
        after = platform.used_us()
        started = [call for call in calls if call.start in excess]
        for call in started:
            excess[call.start].append(max(call.took_us - median, 0))
        if started and before is not None and after is not None and warm_busy is not None:
            busy.append(max(after - before - burst * warm_busy, 0) / len(started))
    return excess, busy


def processor_us(warm: float | None, cold: float | None, clones: list[float]) -> dict[str, int]:
    """Return the processor time of starts, beyond that of a warm call, which stands beside it."""
    if warm is None or cold is None:
        return {}
    known = {"warm": warm, "cold": max(cold - warm, 0)}
    if clones:
        known["clone"] = known["ghost"] = statistics.median(clones)
    return {kind: round(us) for kind, us in known.items()}


def cold_starts(platform: live.Platform, name: str) -> list[live.Call]:
    """Measure cold starts: that of a function, and of others with the same code."""
    first = platform.counted_call(name)
    others = []
    for number in range(1, COLD_STARTS):
        platform.deploy(f"{name}-{number}", live.functions(ROOT)[name])
        others.append(platform.counted_call(f"{name}-{number}"))
    return [call for call in (first, *others) if call.start == "cold"] or [first]


def typical_busy(calls: list[live.Call]) -> float | None:
    """Return the median processor time of calls, if it is known."""
    known = [call.busy_us for call in calls if call.busy_us is not None]
    return statistics.median(known) if known else None


def explained_s(starts: dict[str, dict[str, int]], profiles: list[dict[str, Any]]) -> float | None:
    """Return the processor time of calls and starts, if each takes what the profile says."""
    total_us = 0.0
    for profile in profiles:
        known = profile["cells"][0]["processor_us"]
        for kind, count in starts.get(profile["function"], {}).items():
            if "warm" not in known:
                return None
            beyond_us = 0 if kind == "warm" else known.get(kind, 0)
            total_us += count * (known["warm"] + beyond_us)
    return total_us / 1e6
