"""Section `train`."""

from typing import Literal

from pydantic import Field

from pipeline.core.sections import Section
from pipeline.formats.loss_mask import LossMask


class TrainSection(Section):
    """The drafter and its training.

    Its width is the target's, since it uses the target's embedding, as the engines expect.
    """

    algorithm: Literal["eagle3"]
    draft_vocab_size: int = Field(ge=1)
    """Number of tokens that the drafter can propose: the most frequent supervised ones."""
    ttt_steps: int = Field(ge=1)
    """Steps of the training-time test."""
    step_decay: float = Field(gt=0, le=1)
    """Weight of step j's loss is step_decay ** j."""
    loss_mask: LossMask = "completion+tools"
    """Tokens of an answer that are trained on: `completion+tools` all of it; `completion` all but its tool sections; or
    a weight for each kind of segment. The loss is the weighted mean; tokens of weight 0 have no gradient and do not
    count in the held-out acceptance."""
    loss: Literal["kl", "lk_alpha", "lk_lambda"] = "kl"
    """kl: on the draft vocabulary. lk_*: the acceptance rate itself (arXiv 2602.23881); needs the target's logits over
    the whole vocabulary once for each position."""
    intermediate_size: int | None = Field(None, ge=1)
    """Width of the MLP; null takes the target's."""
    num_heads: int | None = Field(None, ge=1)
    """Null takes the target's."""
    num_kv_heads: int | None = Field(None, ge=1)
    """Null takes the target's; if the target does not have plain key heads, as many as heads."""
    epochs: int = Field(ge=1)
    tokens_per_batch: int = Field(ge=2)
    """Most tokens of one pack; a longer conversation is a pack alone."""
    accumulate: int = Field(1, ge=1)
    """Packs in one optimizer step, over all processes."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """With several processes: ddp keeps all weights in each, fsdp a piece of weights, gradients and optimizer state."""
    lr: float = Field(gt=0)
    warmup: float = Field(ge=0, le=1)
    """Share of the steps in which the rate rises; then it falls to zero as a cosine."""
    weight_decay: float = Field(0.0, ge=0)
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = Field(gt=0)
    """Largest gradient norm."""
    heldout: float = Field(0.1, ge=0, lt=1)
    """Share of rows held out of training to choose the checkpoint; with 0 the last one is kept. All answers to one
    prompt, in all datasets, are on one side."""
    save_every: int = Field(500, ge=1)
    """Steps between two saves for a resumed run; the end of an epoch saves as well."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """bfloat16 is autocast: weights and optimizer stay in float32."""
    device: str = "cpu"
    threads: int | None = Field(2, ge=1)
    """CPU threads; fixed, so that the same machine gives the same bits. Null takes torch's default."""
    seed: int = 0
