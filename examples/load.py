"""Load a run, look at its logits, and score a text with it.

python examples/load.py RUN
"""

import sys

import kinfolk

run = sys.argv[1]
text = "The list is sorted, and the function returns its first item."
model, tokenizer = kinfolk.load(run)  # a run, a checkpoint, or a Hugging Face folder

ids = tokenizer.encode(text, add_special_tokens=False)
logprobs = kinfolk.logits(model, ids).log_softmax(-1)  # (length, vocabulary)
for id, after, row in zip(ids, ids[1:], logprobs, strict=False):
    likeliest = tokenizer.decode([int(row.argmax())])
    print(f"{tokenizer.decode([id])!r:>12} -> {row[after]:6.2f}, likeliest {likeliest!r}")

scores = kinfolk.evaluate(run, text=text)
print(f"{scores.bits_per_byte:.3f} bits per byte ({scores.kind})")
