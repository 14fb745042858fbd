"""GTPO in plain torch. Run it: python examples/gtpo_step.py

A small model that knows the form of an answer, but guesses the number in it, learns the number from rewards.
Equations: docs/method.md. `reference_loss` is steps 2 to 6 in one call; every step checks that the two agree.
"""

import math

import torch

from gtpo.config import BuiltModel
from gtpo.conflict import conflict_weights
from gtpo.inputs.tiny import build_tiny_model
from gtpo.objective import PRESETS, reference_loss
from gtpo.rewards import final_reward

PROBLEM, ANSWER = "What is 2 + 3?", "5"
GROUP, GAMMA, LN2 = 32, 0.1, math.log(2)


def sample(model, tokenizer, prompt):
    """Sample G completions of one prompt. Return ids [G, L] and the mask [G, L] up to the first end of sequence."""
    sequences = model.generate(prompt, do_sample=True, top_k=0, max_new_tokens=20, num_return_sequences=GROUP)
    ids = sequences[:, prompt.shape[1] :]
    ended = (ids == tokenizer.eos_token_id).long()
    return ids, ended.cumsum(dim=1) == ended


def next_token_logits(model, prompt, ids):
    """Return the policy's logits [G, L, V] at every completion token."""
    sequences = torch.cat([prompt.expand(len(ids), -1), ids], dim=1)
    return model(sequences).logits[:, prompt.shape[1] - 1 : -1]


def mean_entropy(logits, mask):
    """Return <H> [G]: the entropy of the next-token distribution in nats, averaged over a completion's tokens."""
    distribution = logits.log_softmax(dim=-1)
    token_entropy = -(distribution.exp() * distribution).sum(dim=-1)
    return (token_entropy * mask).sum(dim=1) / mask.sum(dim=1)


def gtpo_step(model, tokenizer, optimizer, prompt, initial_entropy):
    """Take one step. Return the rewards [G] and entropies [G] of its group."""
    # 1. A group of G completions of one prompt, and what each is worth: 10 for the form, 10 for the answer.
    ids, mask = sample(model, tokenizer, prompt)
    texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
    rewards = torch.tensor(final_reward(texts, answer=[ANSWER] * GROUP))

    # 2. Advantages: each reward against those of its group (Eq. 1).
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)

    # 3. Conflict tokens: what good and bad completions have in common at the start or at the end. They weigh 2 in the
    #    good ones and 0 in the bad ones, so what is right in a wrong answer is not unlearned (Eq. 5).
    weights = conflict_weights(ids, mask, advantages, GROUP).weights

    # 4. The gate: where the untrained model is below ln 2, completions above it are dropped (Eq. 6).
    logits = next_token_logits(model, prompt, ids)
    entropy = mean_entropy(logits, mask).detach()
    keep = (entropy <= LN2) | (initial_entropy >= LN2)

    # 5. Entropy costs a little.
    shaped = keep * (advantages - GAMMA * entropy)

    # 6. The loss, -J (Eq. 7). The ratio is 1 and carries the gradient. No KL term, no reference model.
    logps = logits.log_softmax(dim=-1).gather(2, ids[:, :, None]).squeeze(2)
    ratio = (logps - logps.detach()).exp()
    loss = -(shaped / mask.sum(dim=1) * (ratio * weights * mask).sum(dim=1)).mean()

    reference = reference_loss(PRESETS["gtpo"], logits, ids, mask, rewards, GROUP, initial_entropy=initial_entropy)
    torch.testing.assert_close(loss, reference.loss, atol=1e-4, rtol=1e-4)

    # 7. Follow the gradient.
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return rewards, entropy


def guessing_model():
    """Return a model that answers PROBLEM in the right form with any digit, its tokenizer, and the prompt [1, P]."""
    spec = BuiltModel(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
    model, tokenizer = build_tiny_model(spec, max_seq_length=64, seed=0)
    question = [{"role": "user", "content": PROBLEM}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    digits = [f"<reasoning>\n2+3={n}\n</reasoning>\n<answer>{n}</answer>{tokenizer.eos_token}" for n in range(10)]
    rows = torch.cat([prompt.input_ids.expand(10, -1), tokenizer(digits, return_tensors="pt").input_ids], dim=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(100):
        optimizer.zero_grad()
        model(rows, labels=rows).loss.backward()
        optimizer.step()
    return model, tokenizer, prompt.input_ids


def main(steps=60):
    """Train. Return the mean reward of every step."""
    torch.manual_seed(0)
    model, tokenizer, prompt = guessing_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with torch.no_grad():
        ids, mask = sample(model, tokenizer, prompt)
        initial_entropy = mean_entropy(next_token_logits(model, prompt, ids), mask).mean().item()
    print(f"initial entropy {initial_entropy:.3f}: the gate is {'on' if initial_entropy < LN2 else 'off'}")
    history = []
    for step in range(steps):
        rewards, entropy = gtpo_step(model, tokenizer, optimizer, prompt, initial_entropy)
        history.append(rewards.mean().item())
        if step % 5 == 0:
            print(f"step {step:2d}   mean reward {history[-1]:5.2f} of 20   mean entropy {entropy.mean():.3f}")
    return history


if __name__ == "__main__":
    main()
