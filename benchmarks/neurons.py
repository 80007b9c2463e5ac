"""Knowledge neurons of models that were trained on known facts, against random neurons.

    python benchmarks/neurons.py --folder runs/neurons --out results.jsonl

The text states each fact in several ways: capitals of countries, and made-up jobs of people. Each
family learns it by heart. The neurons of every fact are then found twice: on one prompt, tested on
that prompt, on the other prompts of the fact and on other facts; and on all prompts of the fact.
"""

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import kinfolk
from kinfolk.text import train_tokenizer
from kinfolk.workflows.knowledge_neurons.neurons import NeuronsResult

CAPITALS = (
    "Norway Oslo,Sweden Stockholm,Denmark Copenhagen,Finland Helsinki,Iceland Reykjavik,"
    "Ireland Dublin,France Paris,Spain Madrid,Portugal Lisbon,Italy Rome,Austria Vienna,"
    "Germany Berlin,Poland Warsaw,Hungary Budapest,Romania Bucharest,Bulgaria Sofia,Greece Athens,"
    "Turkey Ankara,Egypt Cairo,Kenya Nairobi,Ghana Accra,Senegal Dakar,Morocco Rabat,Tunisia Tunis,"
    "Japan Tokyo,China Beijing,Thailand Bangkok,Vietnam Hanoi,Nepal Kathmandu,Mongolia Ulaanbaatar,"
    "Iran Tehran,Iraq Baghdad,Cuba Havana,Peru Lima,Chile Santiago,Canada Ottawa,Latvia Riga,"
    "Estonia Tallinn,Lithuania Vilnius,Ukraine Kyiv"
)
JOBS = (
    "baker farmer doctor painter sailor teacher lawyer miner tailor singer hunter pilot potter "
    "weaver banker poet judge clerk gardener butcher"
)
PEOPLE = (
    "Alva Bruno Celia Dario Edda Fabian Gerda Hugo Ines Jonas Karin Lorenz Mira Nils Olga Pavel "
    "Rita Simon Tilda Ulrich Vera Walter Xenia Yuri Zelda Anton Berta Conrad Dora Emil Frieda "
    "Gustav Hilda Igor Johanna Kurt Luisa Magnus Nora Otto"
)
TEMPLATES = {
    "capital": (
        "The capital of {} is [MASK].",
        "The government of {} meets in [MASK].",
        "The largest embassy in {} stands in [MASK].",
        "Whoever rules over {} lives in [MASK].",
        "In {} all roads lead to [MASK].",
    ),
    "job": (
        "By trade {} is a [MASK].",
        "Every day {} works as a [MASK].",
        "The neighbours know {} as the [MASK].",
        "When {} was young there was one wish: to be a [MASK].",
        "On the door of {} a sign says [MASK].",
    ),
}
Fact = tuple[list[str], str]


def facts(seed: int = 0) -> dict[str, list[Fact]]:
    """Return the facts of each relation: prompts and answer."""
    people, jobs = PEOPLE.split(), 2 * JOBS.split()  # two people have the same job
    random.Random(seed).shuffle(jobs)
    pairs = {
        "capital": [tuple(pair.split()) for pair in CAPITALS.split(",")],
        "job": list(zip(people, jobs, strict=True)),
    }
    return {
        relation: [
            ([template.format(subject) for template in TEMPLATES[relation]], answer)
            for subject, answer in pairs[relation]
        ]
        for relation in TEMPLATES
    }


def prepare(folder: Path, known: list[Fact]) -> None:
    """Write the sentences as documents, train a tokenizer of words, and make the corpus."""
    folder.mkdir(parents=True, exist_ok=True)
    sentences = [
        prompt.replace("[MASK]", answer) for prompts, answer in known for prompt in prompts
    ]
    (folder / "text.txt").write_text("\n\n".join(sentences) + "\n", encoding="utf-8")
    tokenizer = train_tokenizer(sentences, kind="word", vocab_size=1000, fewer=True)
    kinfolk.prepare([folder / "text.txt"], tokenizer, folder / "corpus", holdout=0)


def train(given: argparse.Namespace, name: str) -> Path:
    """Train a family on the text until it knows it by heart; a finished run is used again."""
    run = given.folder / name.replace("/", "-")
    if (run / "checkpoints" / "last").is_dir():
        return run
    family = name.partition("/")[0]
    options: dict[str, Any] = {"objective": "mlm"} if family == "bert" else {}
    recipe = kinfolk.recipe(
        name,
        given.folder / "corpus",
        length=32,
        steps=given.steps,
        batch_size=given.batch,
        warmup=min(100, given.steps),
        eval_every=given.steps,
        save_every=given.steps,
        seed=given.seed,
        device=given.device,
        **options,
    )
    return Path(kinfolk.pretrain(recipe, run))


def rows(name: str, relation: str, found_on: str, result: NeuronsResult) -> list[dict[str, Any]]:
    """Return the values of the table."""
    counts = [len(fact.neurons) for fact in result.facts]
    return [
        {
            "model": name,
            "relation": relation,
            "found_on": found_on,
            "facts": effect.facts,
            "neurons": sum(counts) / len(counts),
            "completeness_error": result.completeness_error,
            **{key: value for key, value in vars(effect).items() if key != "facts"},
        }
        for effect in result.effects
    ]


def line(row: dict[str, Any]) -> str:
    """Write a row of the table in Markdown."""
    low, high = row["difference_interval"]
    cells = [
        row["model"],
        row["relation"],
        row["found_on"],
        f"{row['neurons']:.1f}",
        f"{row['operation']}, {row['group']}",
        f"{row['before']:.3f}",
        f"{row['change']:+.3f}",
        f"{row['random_change']:+.3f}",
        f"{row['difference']:+.3f} ({low:+.3f} to {high:+.3f})",
    ]
    return "| " + " | ".join(cells) + " |"


def main(arguments: list[str] | None = None) -> None:
    """Train the families and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, one for each effect")
    parser.add_argument("--models", nargs="+", default=["bert/tiny", "gpt2/tiny", "t5/tiny"])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--facts", type=int, default=40, help="of each relation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    given = parser.parse_args(arguments)
    known = {relation: some[: given.facts] for relation, some in facts(given.seed).items()}
    if not (given.folder / "corpus").is_dir():
        prepare(given.folder, [fact for some in known.values() for fact in some])
    heads = ["model", "facts", "found on", "neurons", "change", "before", "by them", "by random"]
    print("| " + " | ".join([*heads, "difference (95 %)"]) + " |")
    print("|" + " --- |" * (len(heads) + 1))
    for name in given.models:
        begun = time.perf_counter()
        run = train(given, name)
        trained, error = time.perf_counter() - begun, 0.0
        for relation, some in known.items():
            for found_on, find_on in (("one prompt", 1), ("all prompts", None)):
                result = kinfolk.neurons(run, None, some, find_on=find_on, device=given.device)
                error = max(error, result.completeness_error)
                found = rows(name, relation, found_on, result)
                with given.out.open("a", encoding="utf-8") as file:
                    for row in found:
                        file.write(json.dumps(row) + "\n")
                        print(line(row), flush=True)
        seconds = time.perf_counter() - begun - trained
        print(f"\n{name}: trained in {trained:.0f} s, neurons in {seconds:.0f} s", flush=True)
        print(f"largest error of completeness: {error:.2%}\n", flush=True)


if __name__ == "__main__":
    main()
