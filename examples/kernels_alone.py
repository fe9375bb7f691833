"""`scone_kernels` in a decoder of your own: draw from a vocabulary, and average embeddings over it, in one call each."""

import torch

import scone_kernels

print(scone_kernels.status())
torch.manual_seed(0)
rows, vocabulary, width = 8, 5000, 64
hidden = torch.randn(rows, width)  # the last hidden states of your model
head = torch.randn(vocabulary, width) / width**0.5  # its output head
embeddings = torch.randn(vocabulary, width)  # another model's input embeddings
seeds, counters = torch.arange(rows), torch.zeros(rows, dtype=torch.long)

draw = scone_kernels.gibbs_sample(hidden, head, temperature=0.8, seed=seeds, counter=counters)
alone = scone_kernels.gibbs_sample(hidden[3:4], head, temperature=0.8, seed=seeds[3:4], counter=counters[3:4])
print("tokens drawn:", draw.tokens.tolist())
print("row 3 by itself draws the same:", draw.tokens[3].item() == alone.tokens[0].item())

expected = scone_kernels.expected_embedding(hidden, head, embeddings)  # (rows, width); no (rows, vocabulary) tensor
plain = torch.softmax(hidden @ head.T, -1) @ embeddings
print(f"largest difference from plain torch: {(expected - plain).abs().max():.1e}")
