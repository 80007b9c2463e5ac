"""Pretrain a small GPT-2 on Python's own prose, and let it write.

python examples/pretrain.py [FOLDER]
"""

import itertools
import sys
from pathlib import Path

import kinfolk
from kinfolk.data import demo_text
from kinfolk.data.prepare import prepare
from kinfolk.text import train_tokenizer

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/example")
folder.mkdir(parents=True, exist_ok=True)

# A text file: documents with an empty line between them.
texts = [" ".join(text.split()) for text in itertools.islice(demo_text.demo_documents(), 60)]
(folder / "text.txt").write_text("\n\n".join(texts), encoding="utf-8")

tokenizer = train_tokenizer(texts, kind="bpe", vocab_size=1024)
prepare([folder / "text.txt"], tokenizer=tokenizer, out=folder / "corpus", holdout=0.1)

settings = ["train.steps=30", "train.batch_size=8", "train.device=cpu"]
recipe = kinfolk.recipe("gpt2/nano", folder / "corpus", length=64, settings=settings)


class Print(kinfolk.Callback):
    """Print the loss of every step."""

    def on_step(self, progress):
        print(progress.step, round(progress.loss, 3))


run = kinfolk.pretrain(recipe, folder / "run", callbacks=[Print()])

model, tokenizer = kinfolk.load(run)
print("The list" + kinfolk.generate(model, tokenizer, "The list", max_new_tokens=20))
