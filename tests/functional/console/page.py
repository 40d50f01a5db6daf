"""A page as a user sees it: its forms, its tables and its numbers, by the words beside them."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

from httpx import Client, Response

VOID = frozenset({"meta", "link", "input", "rect", "path", "use", "br", "progress"})


class Node:
    """An element, with what is in it."""

    def __init__(self, tag: str, attributes: dict[str, str | None], parent: Node | None) -> None:
        self.tag, self.parent = tag, parent
        self.attributes = {name: value or "" for name, value in attributes.items()}
        self.inside: list[Node | str] = []

    def all(self, tag: str, **having: str) -> Iterator[Node]:
        """Elements in it, in their order."""
        wanted = {name.rstrip("_"): value for name, value in having.items()}
        for each in self.every():
            given = {name: each.attributes.get(name, "") for name in wanted}
            alike = all(value in (given[n], *given[n].split()) for n, value in wanted.items())
            if each is not self and each.tag == tag and alike:
                yield each

    def every(self) -> Iterator[Node]:
        """It, and all elements in it."""
        yield self
        for each in self.inside:
            if isinstance(each, Node):
                yield from each.every()

    @property
    def raw(self) -> str:
        """Its text, as it is."""
        return "".join(e if isinstance(e, str) else e.raw for e in self.inside)

    @property
    def text(self) -> str:
        """Its text, on one line."""
        return " ".join(self.raw.split())


class _Tree(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = self.at = Node("", {}, None)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        node = Node(tag, dict(attrs), self.at)
        self.at.inside.append(node)
        if tag not in VOID:
            self.at = node

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.at.inside.append(Node(tag, dict(attrs), self.at))

    def handle_endtag(self, tag: str) -> None:
        assert self.at.tag == tag, f"</{tag}> closes <{self.at.tag}>"
        assert self.at.parent is not None
        self.at = self.at.parent

    def handle_data(self, data: str) -> None:
        self.at.inside.append(data)


def parsed(html: str) -> Node:
    """The root of what a browser would make of it."""
    tree = _Tree()
    tree.feed(html)
    return tree.root


class Page:
    """An answer that is a page, and what can be done on it."""

    def __init__(self, client: Client, answer: Response) -> None:
        self.client = client
        self.status = answer.status_code
        self.html = answer.text
        self.root = parsed(answer.text)
        self.main = next(self.root.all("main"), self.root)
        self.text = self.main.text

    @property
    def notices(self) -> list[str]:
        """What stands out on it, from the top."""
        return [each.text for each in self.main.all("p", class_="notice")]

    @property
    def tiles(self) -> dict[str, str]:
        """Its numbers by their names, each with its age where it has one."""
        return {
            next(each.all("dt")).text: " ".join(dd.text for dd in each.all("dd"))
            for each in self.main.all("div")
            if any(isinstance(inner, Node) and inner.tag == "dt" for inner in each.inside)
        }

    @property
    def workers(self) -> dict[str, str]:
        """What is said of each worker."""
        found = [each.text for each in self.main.all("p", class_="worker")]
        named = ((n, text) for n in ("delay consumer", "dispatcher") for text in found)
        return {n: text.removeprefix(n).strip() for n, text in named if text.startswith(n)}

    def rows(self, label: str = "") -> list[list[str]]:
        """The rows of the tables whose regions are called that, cell by cell."""
        return [
            [cell.text for cell in row.all("td")]
            for region in self.main.all("div", role="region")
            if label in region.attributes["aria-label"]
            for body in region.all("tbody")
            for row in body.all("tr")
        ]

    @property
    def ids(self) -> list[str]:
        """The messages that its tables name."""
        cells = [each.all("a") for each in self.main.all("td", class_="id")]
        return [link.text for link in (next(each, None) for each in cells) if link]

    def marks(self, *ids: str) -> list[str]:
        """The values of the boxes before these messages; of all where none is named."""
        boxes = [each.attributes for each in self.main.all("input", name="m")]
        labels = {f"Choose {each}" for each in ids}
        return [each["value"] for each in boxes if not ids or each.get("aria-label") in labels]

    def press(self, button: str, **chosen: Any) -> Page:
        """Submit the form with this button, as a browser does: its fields, the button, and what was
        chosen or typed; and follow where it leads."""
        form, pressed = self._form(button)
        fields: dict[str, Any] = {}
        for each in form.all("input"):
            kind, name = each.attributes.get("type", "text"), each.attributes.get("name")
            if name and kind not in ("checkbox", "range"):
                fields.setdefault(name, []).append(each.attributes.get("value", ""))
        for each in form.all("textarea"):
            fields[each.attributes["name"]] = each.raw.removeprefix("\n")
        if "name" in pressed.attributes:
            fields[pressed.attributes["name"]] = pressed.attributes["value"]
        fields |= chosen
        action = form.attributes["action"]
        if form.attributes.get("method") != "post":
            answer = self.client.get(action, params=fields, follow_redirects=True)
        else:
            answer = self.client.post(action, data=fields, follow_redirects=True)
        return Page(self.client, answer)

    def follow(self, link: str) -> Page:
        """Where the link with this text leads."""
        (href,) = (each.attributes["href"] for each in self.main.all("a") if each.text == link)
        return Page(self.client, self.client.get(href))

    def offers(self, button: str) -> bool:
        """Whether there is such a button."""
        return any(each.text == button for each in self.main.all("button"))

    def _form(self, button: str) -> tuple[Node, Node]:
        for form in self.main.all("form"):
            for each in form.all("button"):
                if each.text == button:
                    return form, each
        raise AssertionError(f"no form has the button {button!r}: {self.text}")
