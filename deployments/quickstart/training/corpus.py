"""Owns the training text: short calm prose, facts and questions, made from a grammar of our own.

Nothing here is taken from anywhere else, so the weights trained on it carry no third-party text. The same
seed gives the same text. Must not read files or the clock.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

# Each name is a list of phrases; {name} expands to a random one. {name=x} expands once per document and is
# remembered, so that a paragraph keeps talking about the same thing.
GRAMMAR: dict[str, list[str]] = {
    "adj": ["old", "small", "quiet", "busy", "new", "long", "heavy", "narrow", "bright", "patient"],
    "place": [
        "the harbour", "the north room", "the library", "the old mill", "the station", "the lighthouse",
        "the valley", "the market hall", "the workshop", "the observatory", "the ferry office", "the school",
    ],
    "machine": [
        "server", "turbine", "crane", "printing press", "water pump", "telescope", "generator", "clock",
        "cooling fan", "radio mast", "switch", "loom",
    ],
    "person": [
        "the engineer", "the keeper", "the captain", "the operator", "the librarian", "the night watch",
        "the apprentice", "the gardener", "the pilot", "the teacher",
    ],
    "name": ["Anna", "Jonas", "Mira", "Tomas", "Ines", "Pavel", "Ruth", "Samuel", "Clara", "Idris"],
    "time": [
        "in the morning", "at noon", "before dawn", "after the storm", "in winter", "every evening",
        "on Sunday", "at the end of the week", "during the night", "early in spring",
    ],
    "weather": ["rain", "fog", "snow", "wind", "frost", "thunder", "sunlight", "mist"],
    "sky": ["grey", "clear", "dark", "pale", "blue", "low"],
    "part": ["cable", "valve", "filter", "bearing", "battery", "fuse", "belt", "lamp", "gauge", "disk"],
    "number": ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "twelve"],
    "unit": ["hours", "days", "weeks", "minutes", "months", "years"],
    "colour": ["red", "green", "white", "yellow", "black", "blue"],
    "good": ["carefully", "slowly", "quietly", "without a word", "at once", "with a steady hand"],
    "sound": ["a low hum", "a soft click", "a long whistle", "a slow knock", "a thin rattle"],
    "goods": ["timber", "salt", "grain", "copper", "paper", "wool", "coal", "glass", "apples", "tea"],
    "food": ["bread", "soup", "coffee", "tea", "cheese", "apples"],
    "open": [
        "The {adj} {machine=m} in {place=p} has been running for {number} {unit}.",
        "{Person=w} came to {place=p} {time} to look at the {machine=m}.",
        "There is a {adj} {machine=m} in {place=p}, and {person=w} takes care of it.",
        "{Time}, {person=w} walked down to {place=p} and listened to the {machine=m}.",
        "The {machine=m} stopped {time}, and {person=w} went to {place=p} to find out why.",
        "{Name=w} has kept the {machine=m} in {place=p} for {number} {unit}.",
    ],
    "middle": [
        "The {m} makes {sound} when the {part=q} is warm.",
        "It needs a new {part=q} every {number} {unit}.",
        "Nothing had changed since the last visit, except for the {part=q}.",
        "{W} opened the cover {good} and found that the {part=q} was worn.",
        "The log said that the {part=q} had failed {time}.",
        "A {colour} lamp beside the {part=q} shows that the {m} is ready.",
        "Outside {p} there was {weather}, and the sky was {sky}.",
        "{W} wrote the number down {good}, and checked the {part=q} again.",
        "When the {part=q} is cold, the {m} takes {number} minutes to start.",
        "Most of the {goods} that comes through {p} is weighed {time}.",
        "The manual says to wait {number} minutes before touching the {part=q}.",
        "Somebody had replaced the {part=q} with a {adj} one and told nobody.",
        "{W} drank some {food} and waited until the {m} was quiet.",
        "The {m} is slow {time}, because of the {weather}.",
    ],
    "close": [
        "After that the {m} ran without a fault for {number} {unit}.",
        "By evening everything in {p} was working again.",
        "{W} closed the door and went home.",
        "The {m} has not stopped since.",
        "It was enough to clean the {part} and start the {m} again.",
        "Since then {w} checks the {part} first.",
        "The rest of the day was calm.",
    ],
    "sea_open": [
        "The {adj} ship left {port=p} {time} with {goods=g} for {port}.",
        "A ship with {goods=g} came into {port=p} {time}.",
        "The ferry from {port=p} carries {goods=g} and {number} passengers.",
    ],
    "sea": [
        "The wind was from the {compass=c}, and the sea was {sky}.",
        "{Name=w} stood at the rail and watched the {compass} shore.",
        "The captain turned the ship to the {compass} and waited for the {weather}.",
        "It takes {number} {unit} to cross when the wind is from the {compass}.",
        "The {goods} was kept dry below the deck.",
        "The lighthouse could be seen from {number} miles away.",
        "In {p} the price of {g} rises {time}.",
        "The crew ate {food} and {food} and slept until the watch changed.",
    ],
    "sea_close": [
        "They reached the harbour {time}.",
        "The {g} was sold in {p} within {number} {unit}.",
        "Nobody on board had seen such {weather} before.",
        "The harbour was quiet again.",
    ],
    "port": ["Bergen", "Lisbon", "Hamburg", "Cork", "Riga", "Genoa", "Malmo", "Porto"],
    "compass": ["north", "south", "east", "west"],
    "weather_open": [
        "{Time} the {weather=x} came down from the hills.",
        "The {weather=x} began {time} and lasted {number} {unit}.",
        "There has been {weather=x} over {place=p} for {number} {unit}.",
    ],
    "weather_mid": [
        "The sky over {place} was {sky}.",
        "After the {x} the air was {sky} and still.",
        "The river rose by {number} feet, and the bridge was closed.",
        "In the garden the {colour} flowers bent under the {x}.",
        "People in {place} lit their lamps early.",
        "The {weather} will turn to {weather} by the end of the week.",
        "{Name} wrote in the diary that the {x} was the worst in {number} years.",
    ],
    "weather_close": [
        "Then the sun came out, and the roads dried.",
        "By night it was over.",
        "The next day was clear.",
    ],
}  # fmt: skip

CAPITALS = {
    "France": "Paris", "Norway": "Oslo", "Spain": "Madrid", "Portugal": "Lisbon", "Italy": "Rome",
    "Germany": "Berlin", "Poland": "Warsaw", "Austria": "Vienna", "Greece": "Athens", "Sweden": "Stockholm",
    "Finland": "Helsinki", "Denmark": "Copenhagen", "Ireland": "Dublin", "Japan": "Tokyo", "China": "Beijing",
    "India": "Delhi", "Egypt": "Cairo", "Kenya": "Nairobi", "Peru": "Lima", "Chile": "Santiago",
    "Canada": "Ottawa", "Cuba": "Havana", "Hungary": "Budapest", "Latvia": "Riga",
}  # fmt: skip
RIVER_TOWNS = {
    "Paris",
    "Rome",
    "Vienna",
    "Warsaw",
    "Budapest",
    "Cairo",
    "Berlin",
    "Delhi",
    "Ottawa",
    "Madrid",
}

EXPLANATIONS = {
    "a server": "A server is a machine that answers requests from other machines.",
    "a harbour": "A harbour is a place where ships are safe from the wind.",
    "a lighthouse": "A lighthouse is a tower with a lamp that shows ships the way.",
    "a cache": "A cache is a store that keeps what was computed, so that it need not be computed again.",
    "a turbine": "A turbine is a machine that turns the wind or water into power.",
    "a commit": "A commit is a fixed state of a set of files with a date and an author.",
    "a lock": "A lock is a list of everything that must stay the same.",
    "fog": "Fog is a cloud that lies on the ground.",
    "a token": "A token is a small piece of text.",
}
# What a one-letter name stands for where the opening did not bind it.
UNBOUND = {"m": "{machine}", "p": "{place}", "w": "{person}", "q": "{part}", "g": "{goods}", "x": "{weather}"}
FIELD = re.compile(r"\{(\w+)(?:=(\w))?\}")


class Document:
    """Expands templates and remembers the bound names of one document."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.bound: dict[str, str] = {}

    def expand(self, template: str) -> str:
        return FIELD.sub(self._field, template)

    def _field(self, match: re.Match[str]) -> str:
        key, bind = match.group(1), match.group(2)
        lower = key[0].lower() + key[1:]
        if len(lower) == 1:
            value = self.bound.get(lower) or self.expand(UNBOUND[lower])
            self.bound[lower] = value
        elif bind and bind in self.bound:
            value = self.bound[bind]
        else:
            value = self.expand(self.rng.choice(GRAMMAR[lower]))
        if bind:
            self.bound[bind] = value
        return value[0].upper() + value[1:] if key[0].isupper() else value


def prose(rng: random.Random, opening: str, middle: str, closing: str) -> str:
    doc = Document(rng)
    sentences = [doc.expand(rng.choice(GRAMMAR[opening]))]
    sentences += [doc.expand(t) for t in rng.sample(GRAMMAR[middle], rng.randint(2, 5))]
    sentences.append(doc.expand(rng.choice(GRAMMAR[closing])))
    return " ".join(sentences)


def capital(rng: random.Random) -> str:
    country, city = rng.choice(sorted(CAPITALS.items()))
    where = "on a river" if city in RIVER_TOWNS else "near the sea"
    doc = Document(rng)
    rest = rng.choice([
        f"The city lies {where}, and many people live there.",
        f"{city} lies {where}. " + doc.expand("Trains leave from the station {time}."),
        f"The people of {country} go to {city} " + doc.expand("{time} to sell {goods} and {goods}."),
        doc.expand("In {place} of the city there is a {adj} {machine}."),
    ])  # fmt: skip
    return f"The capital of {country} is {city}. {rest}"


def chat(rng: random.Random) -> str:
    if rng.random() < 0.5:
        country, city = rng.choice(sorted(CAPITALS.items()))
        question = rng.choice(["What is the capital of {}?", "Tell me the capital of {}.", "The capital of {}?"])
        return f"<|user|>{question.format(country)}<|assistant|>The capital of {country} is {city}."
    thing, answer = rng.choice(sorted(EXPLANATIONS.items()))
    if rng.random() < 0.75:
        question = rng.choice(["What is {}?", "Tell me what {} is.", "Explain {}."])
        return f"<|user|>{question.format(thing)}<|assistant|>{answer}"
    story = rng.choice(["Tell me a story.", "Write a short story.", "Write about the sea.", "Hello!"])
    kind = ("sea_open", "sea", "sea_close") if "sea" in story else ("open", "middle", "close")
    return f"<|user|>{story}<|assistant|>{prose(rng, *kind)}"


def documents(seed: int, count: int) -> Iterator[str]:
    """`count` documents, the same for the same seed."""
    rng = random.Random(seed)
    for _ in range(count):
        draw = rng.random()
        if draw < 0.42:
            yield prose(rng, "open", "middle", "close")
        elif draw < 0.62:
            yield prose(rng, "sea_open", "sea", "sea_close")
        elif draw < 0.74:
            yield prose(rng, "weather_open", "weather_mid", "weather_close")
        elif draw < 0.86:
            yield capital(rng)
        elif draw < 0.90:
            yield rng.choice(sorted(EXPLANATIONS.values()))
        else:
            yield chat(rng)


if __name__ == "__main__":
    for text in documents(0, 20):
        print(text)
