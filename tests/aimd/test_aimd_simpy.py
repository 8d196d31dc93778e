"""An independent check: single requests in a discrete-event simulation with the same controller.

Arrivals are deterministic, 1/lambda apart. Unit i takes its m-th request of a cycle when a tau + alpha tau^2 / 2
reaches m. A unit that finds the batch queue empty raises the event: all units decrease, and their fractions of a
request are dropped. Servers work request by request at gamma, which changes at events in the middle of a service.

How far may that be from the fluid? The n dropped fractions and the one arrival under way delay an event by at most
(n + 1) / (lambda - sum a) seconds, since the batch queue falls at the rate lambda - sum a at the end of a cycle. That
is (n + 1) / (1 - sum a / lambda) arrivals, whatever the scale of the system. The admission rates forget it (Phi is
Schur). A backlog does not: on the 2-cycle an error is only passed on, so it may grow by as much again in every cycle.
"""

import math
from collections import deque

import pytest
import torch

from idn_torch import aimd

simpy = pytest.importorskip("simpy")


class RequestLevel:
    """One system, request by request."""

    def __init__(self, alpha, beta, rate, u0, w0):
        self.alpha, self.beta, self.rate = alpha, beta, rate
        self.n = len(alpha)
        self.env = simpy.Environment()
        self.batch = deque()
        self.units = [deque([None] * int(w)) for w in w0]
        self.left = [1.0] * self.n  # work left of the request in service
        self.peak = list(u0)
        self.events, self.waits = [], [[] for _ in alpha]
        self.counts, self.served = [0] * self.n, [0] * self.n
        self.batch_area, self.unit_area, self.last = 0.0, 0.0, 0.0
        self.arrived = [self.env.event() for _ in alpha]
        self.changed = [self.env.event() for _ in alpha]
        self.start = 0.0
        self.admitters = []
        self.decrease()
        self.admitters = [self.env.process(self.admit(i)) for i in range(self.n)]
        for i in range(self.n):
            self.env.process(self.serve(i))
        self.env.process(self.arrive())

    def account(self):
        span = self.env.now - self.last
        self.batch_area += len(self.batch) * span
        self.unit_area += sum(len(q) for q in self.units) * span
        self.last = self.env.now

    def decrease(self, by=None):
        """The event: record the cycle that ends, lower the rates, set the service rates."""
        self.account()
        tau = self.env.now - self.start
        if self.events:
            self.peak = [a + al * tau for a, al in zip(self.a, self.alpha, strict=True)]
        level = [len(q) - (1 - self.left[i] if q else 0) for i, q in enumerate(self.units)]
        area = self.batch_area + self.unit_area
        self.events.append((self.env.now, list(self.peak), level, list(self.counts), list(self.served), area))
        self.a = [b * u for b, u in zip(self.beta, self.peak, strict=True)]
        while sum(self.a) > (1 - 1e-6) * self.rate:
            self.a = [b * u for b, u in zip(self.beta, self.a, strict=True)]
        self.gamma = [a + math.sqrt(2 * al * w) for a, al, w in zip(self.a, self.alpha, level, strict=True)]
        self.start, self.cycle_counts = self.env.now, [0] * self.n
        for i, process in enumerate(self.admitters):
            if i != by:
                process.interrupt()
        for i in range(self.n):
            event, self.changed[i] = self.changed[i], self.env.event()
            event.succeed()

    def arrive(self):
        while True:
            yield self.env.timeout(1 / self.rate)
            self.account()
            self.batch.append(self.env.now)

    def admit(self, i):
        while True:
            m = self.cycle_counts[i] + 1
            due = (math.sqrt(self.a[i] ** 2 + 2 * self.alpha[i] * m) - self.a[i]) / self.alpha[i]
            try:
                yield self.env.timeout(max(0.0, self.start + due - self.env.now))
            except simpy.Interrupt:
                continue
            if not self.batch:
                self.decrease(by=i)
                continue
            self.account()
            self.units[i].append(self.batch.popleft())
            self.cycle_counts[i] += 1
            self.counts[i] += 1
            event, self.arrived[i] = self.arrived[i], self.env.event()
            event.succeed()

    def serve(self, i):
        while True:
            if not self.units[i]:
                yield self.arrived[i]
                continue
            begin, gamma = self.env.now, self.gamma[i]
            done = self.env.timeout(self.left[i] / gamma) if gamma > 0 else self.env.event()
            yield done | self.changed[i]
            if done.triggered and done.processed:
                self.account()
                arrival = self.units[i].popleft()
                self.served[i] += 1
                self.left[i] = 1.0
                if arrival is not None:
                    self.waits[i].append(self.env.now - arrival)
            else:
                self.left[i] = max(0.0, self.left[i] - gamma * (self.env.now - begin))


@pytest.mark.parametrize("scale", [1, 4, 16])
def test_the_fluid_model_is_within_a_few_requests_of_single_requests(scale):
    cycles, n = 8, 3
    alpha = scale * torch.tensor([4.0, 8.0, 2.0], dtype=torch.float64)
    beta = torch.tensor([0.5, 0.6, 0.3], dtype=torch.float64)
    rate = 60.0 * scale
    target = aimd.fixed_point(alpha, beta, rate)
    u0 = 0.97 * target.admission
    # Neither near zero nor near the other end: there the square root in gamma_hat magnifies single requests.
    w0 = (alpha / 2 * (0.4 * target.period) ** 2).round()
    fluid = aimd.simulate(alpha, beta, rate, u0, w0, cycles)
    single = RequestLevel(alpha.tolist(), beta.tolist(), rate, u0.tolist(), w0.tolist())
    while len(single.events) <= cycles:
        single.env.step()

    a = fluid.admission * beta ** fluid.drops[:, None]
    delay = (n + 1) / (1 - a.sum(-1).max().item() / rate)  # arrivals, see above
    assert delay < 16
    times = torch.tensor([e[0] for e in single.events], dtype=torch.float64)
    found = [torch.tensor([e[j] for e in single.events], dtype=torch.float64) for j in range(1, 6)]
    peaks, levels, counts, served, areas = found
    mean = a + alpha * fluid.period[:, None] / 2
    admitted = mean * fluid.period[:, None]

    assert (times[1:] - times[:-1] - fluid.period).abs().max() * rate <= delay
    assert ((peaks[:-1] - fluid.admission).abs() * fluid.period[:, None]).max() <= delay
    assert ((counts[1:] - counts[:-1]) - admitted).abs().max() <= delay
    # By cycle k the backlog has taken up k delays.
    grown = delay * torch.arange(1, cycles + 1)[:, None]
    assert ((levels[:-1] - fluid.backlog).abs() <= grown).all()
    done = (fluid.service_rate * fluid.period[:, None]).cumsum(0)
    assert ((served[1:] - done).abs() <= grown + 1).all()
    # Integral of all queues: the error of n backlogs and the batch queue, over a cycle each.
    area = (admitted * fluid.queueing_time).sum(-1).cumsum(0)
    slack = ((n + 1) * grown[:, 0] * fluid.period).cumsum(0)
    assert ((areas[1:] - area).abs() <= slack).all()
    if scale == 16:
        # Large systems: the bound of a few requests is a small part of everything.
        assert (areas[-1] - area[-1]).abs() <= 0.03 * area[-1]
        waits = torch.tensor([w for unit in single.waits for w in unit], dtype=torch.float64)
        assert abs(waits.mean() - area[-1] / admitted.sum()) <= 0.05 * waits.mean()
        assert len(waits) > 1000 * scale / 16
