"""The log of a platform, for programs."""

import json

from served import annotation, open_place, serving

from farfork.demo.command import Farfork

GREET = "def main(args): return {}\n"


def test_the_log_is_for_programs_and_has_every_call(farfork: Farfork) -> None:
    options = ["--nodes", "1", "--log-format", "json", "--log-level", "debug"]
    with open_place() as place, serving(farfork, place / "state", *options) as platform:
        platform.deploy("greet", GREET)
        reply = platform.good("greet")
        lines = [json.loads(line) for line in platform.log().splitlines()]
    (ended,) = [line for line in lines if line.get("message") == "a call has ended"]
    assert (ended["id"], ended["about"]) == (reply["activationId"], "guest/greet")
    assert ended["traceparent"] == annotation(reply, "traceparent")
    assert (ended["level"], ended["outcome"]) == ("DEBUG", "Success")
    wrong = farfork.run("serve", "--log-level", "loud")
    assert (wrong.returncode, "loud" in wrong.stderr) == (2, True)
