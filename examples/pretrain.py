"""Pretrain a small GPT-2 on a text file or a folder of text, and generate with it.

python examples/pretrain.py TEXT [FOLDER]
"""

import sys
from pathlib import Path

import kinfolk

text = sys.argv[1]
folder = Path(sys.argv[2] if len(sys.argv) > 2 else "runs/example")

tokenizer = kinfolk.train_tokenizer(text, kind="bpe", vocab_size=512)
kinfolk.prepare(text, tokenizer, folder / "corpus", holdout=0.1)


class Print(kinfolk.Callback):
    """Print the loss of every step."""

    def on_step(self, progress):
        print(progress.step, round(progress.loss, 3))


recipe = kinfolk.recipe(
    "gpt2/nano", folder / "corpus", length=64, steps=30, batch_size=8, device="cpu"
)
run = kinfolk.pretrain(recipe, folder / "run", callbacks=[Print()])

model, tokenizer = kinfolk.load(run)
print("The list" + kinfolk.generate(model, tokenizer, "The list", max_new_tokens=20))
