"""The consumer's half of a fencing token: whoever was an owner once is not listened to after its successor."""

from __future__ import annotations

from threading import Lock

from rankbind.errors import DeposedError


class Fence:
    """Remembers the greatest token of each resource, and refuses smaller ones. For any number of threads.

    A lease tells an owner when to stop; one that was stopped between asking and acting acts all the same, late. Only
    who receives the act can tell, by the token that comes with it. Equal tokens are one owner's, and pass.
    """

    def __init__(self) -> None:
        self._greatest: dict[str, int] = {}
        self._mutex = Lock()

    def admit(self, resource: str, token: int) -> bool:
        """Whether what comes with `token` is to be taken: False once a greater one was seen of `resource`."""
        with self._mutex:
            if token < self._greatest.get(resource, token):
                return False
            self._greatest[resource] = token
            return True

    def check(self, resource: str, token: int) -> None:
        """As `admit`.

        Raises:
            DeposedError: a greater token was seen before.
        """
        if not self.admit(resource, token):
            raise DeposedError(
                f"{resource}: token {token} is from an owner that was deposed: {self._greatest[resource]} was seen "
                "before. What it sent is refused",
                resource,
                token,
            )
