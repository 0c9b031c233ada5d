"""The slow reference of draws made ahead: uniforms and lookups of one batch at a time, nothing kept for later."""

import torch

from dasgrad.sampling.ahead import make_order


class OneByOne:
    """What `BatchDraws` has to give, to be put in its place."""

    def __init__(self, batch_size, num_batches, stratified, device):
        self.shape, self.stratified, self.device = (batch_size, num_batches), stratified, device
        self.generator, self.cover_generator = torch.Generator(device), torch.Generator(device)

    def rand(self, shape, generator):
        return torch.rand(shape, dtype=torch.float64, device=self.device, generator=generator)

    def shuffle(self):
        self.before = self.cover_generator.get_state()
        self.order_KB = make_order(*self.shape, self.cover_generator)
        self.position = 0

    def draw_batch(self, look_up):
        if self.stratified != "pass":
            return self.draw_others(self.shape[0], look_up)
        if self.position == self.shape[1]:
            self.place = (self.place + (5**0.5 - 1) / 2) % 1.0
            self.shuffle()
        self.position += 1
        return look_up((self.order_KB[self.position - 1] + self.place) / self.shape[1], stratified=True)

    def draw_batches(self, num, look_up):
        indices, weights = zip(*(self.draw_batch(look_up) for _ in range(num)), strict=True)
        return torch.stack(indices), torch.stack(weights)

    def draw_others(self, num, look_up):
        return look_up(self.rand((num,), self.generator), stratified=self.stratified != "none")

    def forget_lookups(self):
        pass

    def restart(self, seed):
        self.generator.manual_seed(seed)
        self.cover_generator.manual_seed(seed)
        self.place = self.rand((), self.cover_generator)
        self.shuffle()

    def state_dict(self):
        state = {"generator": self.generator.get_state()}
        if self.stratified == "pass":
            state["cover"] = {"generator": self.before, "place": self.place, "position": self.position}
        return state

    def load_state_dict(self, state_dict):
        self.generator.set_state(state_dict["generator"])
        if self.stratified == "pass":
            self.cover_generator.set_state(state_dict["cover"]["generator"])
            self.place = state_dict["cover"]["place"]
            self.shuffle()
            self.position = state_dict["cover"]["position"]
