"""Several namespaces on one platform, by keys that its operator makes."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kinds import archive
from served import Answer, Platform, await_true

WHO = """
import os, time

def main(args):
    time.sleep(args.get("sleep", 0))
    return {"who": args["who"], "user": os.getuid(), "group": os.getgid()}
"""
PREPARED_CALLS = 17


class Team:
    """A namespace of the platform, with a key of its own."""

    def __init__(self, platform: Platform, name: str) -> None:
        self.platform = platform
        self.name = name
        self.key = self.make()

    def operate(self, command: str, *arguments: str) -> Any:
        """Do something with the namespace's keys as the operator does."""
        state = str(self.platform.state)
        return self.platform.farfork.json("keys", command, self.name, "--state", state, *arguments)

    def make(self) -> str:
        """Make another key."""
        made = self.operate("create")["made"]
        return f"{made['user']}:{made['secret']}"

    def ask(self, method: str, path: str, body: Any = None, namespace: str = "_") -> Answer:
        """Ask with the namespace's key."""
        return self.platform.ask(method, path, body, self.key, namespace)

    def deploy(self, name: str) -> None:
        """Deploy an action that returns its namespace."""
        parameters = [{"key": "who", "value": self.name}]
        body = {"exec": {"kind": "python:default", "code": WHO}, "parameters": parameters}
        assert self.ask("PUT", f"actions/{name}", body).status == 200

    def call(self, name: str, **args: Any) -> Any:
        """Call an action, and return its result."""
        answer = self.ask("POST", f"actions/{name}?blocking=true&result=true", args)
        assert answer.status == 200, answer
        return answer.body


@pytest.fixture
def teams(platform: Platform) -> tuple[Team, Team]:
    return Team(platform, "red"), Team(platform, "blue")


def test_actions_of_one_name_are_those_of_their_namespaces(teams: tuple[Team, Team]) -> None:
    red, blue = teams
    for team in teams:
        team.deploy("same")
    reply = [[team.call("same") for _ in range(PREPARED_CALLS + 2)] for team in teams]
    # Clones of each namespace run as its own user.
    users = [{(one["user"], one["group"]) for one in own} for own in reply]
    assert [{one["who"] for one in own} for own in reply] == [{"red"}, {"blue"}]
    assert [len(own) for own in users] == [1, 1]
    assert users[0].isdisjoint(users[1])
    assert all(user >= 2_000_000_000 for own in users for user, _ in own)
    for team, other in [(red, blue), (blue, red)]:
        assert team.ask("GET", "actions/same", namespace=team.name).status == 200
        assert team.ask("GET", "actions/same", namespace=other.name).status == 403
        listed = team.ask("GET", "activations?limit=200").body
        assert {one["namespace"] for one in listed} == {team.name}
        activation = listed[0]["activationId"]
        assert team.ask("GET", f"activations/{activation}").status == 200
        assert other.ask("GET", f"activations/{activation}").status == 404
    assert red.ask("DELETE", "actions/same").status == 200
    assert blue.call("same")["who"] == "blue"


def test_clones_of_one_code_share_pages_in_their_namespace_alone(teams: tuple[Team, Team]) -> None:
    platform = teams[0].platform
    for team in teams:
        team.deploy("apart")
        for _ in range(PREPARED_CALLS):
            team.call("apart")
    with ThreadPoolExecutor() as pool:
        calls = [pool.submit(team.call, "apart", sleep=4) for team in teams for _ in range(4)]
        await_true(lambda: all(len(own) >= 2 for own in clones(platform, teams)), "clones run")
        # By namespace, by clone.
        pages = [[image_pages(platform, pid) for pid in own] for own in clones(platform, teams)]
        users = {call.result()["user"] for call in calls}
    assert len(users) == len(teams)
    for one, other in pages[0][:2], pages[1][:2]:
        assert one & other, "clones of an image share its pages"
    of_red, of_blue = (set().union(*own) for own in pages)
    assert of_red.isdisjoint(of_blue)


PRY = """
import os

def main(args):
    tried = {}
    for path in args["paths"]:
        for name, do in (
            ("list", lambda: os.listdir(path)),
            ("read", lambda: open(path + "/secret.txt").read()),
            ("write", lambda: open(path + "/secret.txt", "w")),
            ("make", lambda: open(path + "/new.txt", "w")),
            ("chmod", lambda: os.chmod(path, 0o777)),
            ("rename", lambda: os.rename(path, path + "-taken")),
        ):
            try:
                do()
                tried[name + " " + path] = "done"
            except OSError as error:
                tried[name + " " + path] = type(error).__name__
    return tried
"""


def test_files_of_functions_are_those_of_their_namespaces(teams: tuple[Team, Team]) -> None:
    red, blue = teams
    code = archive({"__main__.py": WHO, "secret.txt": "of red"})
    body = {"exec": {"kind": "python:default", "code": code, "binary": True}}
    assert red.ask("PUT", "actions/closed", body).status == 200
    red.deploy("text")
    user = red.call("text")["user"]
    assert red.call("closed", who="red")["user"] == user
    at = (red.platform.state / "code").resolve()
    (folder,) = at.glob("red_closed:*")
    # What red's functions write lies in layers of their own; this is what all of them begin with.
    paths = [str(folder), str(at / f".empty-{user}")]
    blue.ask("PUT", "actions/pry", {"exec": {"kind": "python:default", "code": PRY}})
    for _ in range(2):
        tried = blue.call("pry", paths=paths)
        assert set(tried.values()) == {"PermissionError"}, tried
    assert (folder / "secret.txt").read_text() == "of red"


def clones(platform: Platform, teams: tuple[Team, Team]) -> list[list[int]]:
    """Return the pids of clones of functions' images, by namespace."""
    there = platform.instances()
    return [[one["pid"] for one in there if team.name in one["image"]] for team in teams]


def image_pages(platform: Platform, pid: int) -> set[tuple[str, int]]:
    """Return which pages of which images are mapped by a process, present or not."""
    images = platform.farfork.environment["FARFORK_POOL"] + "/images/"
    pages: set[tuple[str, int]] = set()
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        addresses, _, offset, _, _, *path = line.split(maxsplit=5)
        if path and path[0].startswith(images):
            start, end = (int(one, 16) >> 12 for one in addresses.split("-"))
            first = int(offset, 16) >> 12
            pages.update((path[0], page) for page in range(first, first + end - start))
    return pages


def test_a_key_opens_until_it_is_revoked(platform: Platform) -> None:
    team = Team(platform, "green")
    first, second = team.key, team.make()
    listed = team.operate("list")
    assert {one["user"] for one in listed} == {key.split(":")[0] for key in (first, second)}
    assert "secret" not in str(listed)
    team.deploy("kept")
    for key in (first, second):
        assert platform.ask("GET", "actions/kept", key=key).status == 200
    wrong = f"{first.split(':')[0]}:{second.split(':')[1]}"
    assert platform.ask("GET", "actions/kept", key=wrong).status == 401
    assert team.operate("revoke") == {"revoked": 2}
    for key in (first, second):
        assert platform.ask("GET", "actions/kept", key=key).status == 401
    none = platform.farfork.run("keys", "revoke", team.name, "--state", str(platform.state))
    assert (none.returncode, "no keys" in none.stderr) == (1, True)
    # Its actions stay, and a new key opens them.
    team.key = team.make()
    assert team.call("kept")["who"] == "green"


def test_bad_names_and_places_are_told(platform: Platform) -> None:
    state = str(platform.state)
    bad = platform.farfork.run("keys", "create", "a/b", "--state", state)
    assert (bad.returncode, "a/b" in bad.stderr) == (2, True)
    nothing = platform.farfork.run("keys", "list", "--state", f"{state}/nothing")
    words = "is not a platform's state directory"
    assert (nothing.returncode, words in nothing.stderr) == (1, True)
