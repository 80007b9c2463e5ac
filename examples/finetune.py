"""Fine-tune a model on labelled rows, evaluate it, and predict.

python examples/finetune.py MODEL FOLDER    (MODEL: a run, a model folder, or FAMILY/SIZE)
"""

import sys
from pathlib import Path

import kinfolk

model, folder = sys.argv[1], Path(sys.argv[2])

adjectives = {"good": ["fine", "lovely", "great"], "bad": ["awful", "dull", "poor"]}
rows = [
    {"text": f"the {noun} of the film was {adjective}", "label": label}
    for label, words in adjectives.items()
    for adjective in words
    for noun in ("story", "end", "music", "cast", "first half", "sound")
]

run = kinfolk.finetune(model, rows, folder / "opinions", epochs=20, lr=1e-3, device="cpu")

result = kinfolk.evaluate(run, test=rows)
print(f"accuracy {result.scores['accuracy']:.2f}")
texts = ["the cast was lovely", "the end was dull"]
for text, prediction in zip(texts, kinfolk.predict(run, texts), strict=True):
    print(f"{text}: {prediction.value} ({prediction.probability:.2f})")
