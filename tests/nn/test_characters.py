"""The character CNN against its formulas, and the table of a vocabulary."""

import torch
import torch.nn.functional as F

from kinfolk.nn.characters import CharacterCNN, CharacterEmbedding, digits_of_ids
from kinfolk.text.characters import encode_word


def small(vocab: int = 120) -> CharacterEmbedding:
    torch.manual_seed(0)
    cnn = CharacterCNN(6, embedding_size=4, filters=[(1, 3), (2, 5), (3, 4)], num_highway=2)
    cnn.init_weights()
    return CharacterEmbedding(vocab, 8, cnn)


@torch.no_grad()
def test_the_cnn_is_the_maximum_of_each_filter_and_two_highways() -> None:
    model = small().cnn
    ids = torch.stack([torch.from_numpy(encode_word(w, 8)) for w in ("cat", "a", "mouse")]).long()
    x = model.embedding.weight[ids]  # (words, characters, size)
    parts = []
    for conv in model.filters:
        width = conv.weight.shape[2]
        windows = torch.stack([x[:, i : i + width] for i in range(8 - width + 1)], 1)
        scores = torch.einsum("wpcs,osc->wpo", windows, conv.weight) + conv.bias
        parts.append(F.relu(scores.max(1).values))
    wanted = torch.cat(parts, -1)
    for highway in model.highways:
        gate = torch.sigmoid(wanted @ highway.gate.weight.T + highway.gate.bias)
        new = F.relu(wanted @ highway.transform.weight.T + highway.transform.bias)
        wanted = gate * new + (1 - gate) * wanted
    wanted = wanted @ model.out_proj.weight.T + model.out_proj.bias
    torch.testing.assert_close(model(ids), wanted)


def test_until_a_tokenizer_is_known_a_token_is_spelled_by_its_id() -> None:
    table = digits_of_ids(120, 8)
    assert table[7].tolist() == encode_word("007", 8).tolist()
    assert len({tuple(row) for row in table.tolist()}) == 120
    short = digits_of_ids(120, 4)
    assert short[117].tolist() == encode_word("17", 4).tolist()


def test_tokens_are_read_by_the_table_or_by_their_own_characters() -> None:
    model = small()
    ids = torch.tensor([[3, 5, 3], [90, 5, 0]])
    by_id = model(ids)
    assert by_id.shape == (2, 3, 6)
    torch.testing.assert_close(by_id[0, 0], model.cnn(model.table[[3]].long())[0])
    torch.testing.assert_close(model(ids, model.table[ids].long()), by_id)
    own = model.table[ids].long()
    own[0, 1] = torch.from_numpy(encode_word("new", 8))
    changed = (model(ids, own) - by_id).abs().amax(-1) > 1e-6
    assert changed.tolist() == [[False, True, False], [False, False, False]]
    before = model.table.clone()
    model.set_table(before[10:30])
    assert torch.equal(model.table[:20], before[10:30]) and torch.equal(
        model.table[20:], before[20:]
    )
    assert "table" in model.state_dict()
