"""DASGrad as a torch optimizer: closures, groups, checkpoints, errors."""

import copy
import io
import pickle

import pytest
import torch

import dasgrad


def quadratic(num_groups=1, **options):
    params = [torch.nn.Parameter(torch.tensor([1.0, -2.0])) for _ in range(num_groups)]
    groups = [{"params": [p], "lr": 0.1 * (k + 1)} for k, p in enumerate(params)]
    return params, dasgrad.DASGrad(groups, **options)


def step(params, optimizer):
    optimizer.zero_grad()
    sum(p.square().sum() for p in params).backward()
    optimizer.step()


def test_closure_is_evaluated_with_gradients_and_its_loss_returned():
    (param,), optimizer = quadratic()

    def closure():
        optimizer.zero_grad()
        loss = param.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 5.0
    assert not torch.equal(param.detach(), torch.tensor([1.0, -2.0]))


def test_param_groups_have_options_of_their_own():
    params, optimizer = quadratic(2)
    optimizer.param_groups[1]["projection"] = dasgrad.projections.Box(-0.5, 0.5)
    step(params, optimizer)
    assert params[0].abs().max() > 0.5
    assert params[1].abs().max() == 0.5


def test_parameters_without_gradient_are_left_alone():
    params, optimizer = quadratic(2)
    params[0].square().sum().backward()
    optimizer.step()
    assert params[1] not in optimizer.state
    torch.testing.assert_close(params[1].detach(), torch.tensor([1.0, -2.0]))


@pytest.mark.parametrize("moments", ["sgd", "adagrad", "rmsprop", "adam", "amsgrad"])
def test_state_dict_round_trip_goes_on_bit_for_bit(moments):
    params, optimizer = quadratic(2, moments=moments, projection=dasgrad.projections.L2Ball(2.0))
    for _ in range(3):
        step(params, optimizer)
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    twins = [torch.nn.Parameter(p.detach().clone()) for p in params]
    again = dasgrad.DASGrad(
        [{"params": [p]} for p in twins], moments=moments, projection=dasgrad.projections.L2Ball(2.0)
    )
    state = torch.load(buffer, weights_only=True)
    again.load_state_dict(state)
    again.load_state_dict(state)  # a second time, too: torch adds a default of its own at the first
    assert [g["lr"] for g in again.param_groups] == [0.1, 0.2]
    for _ in range(3):
        step(params, optimizer)
        step(twins, again)
    for p, q in zip(params, twins, strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_a_checkpoint_of_torch_loads(kind, amsgrad):
    param = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    theirs = kind([param], lr=0.05, amsgrad=amsgrad)
    step([param], theirs)
    ours = dasgrad.DASGrad([param], lr=0.9)
    ours.load_state_dict(theirs.state_dict())
    state = ours.state[param]
    assert ours.param_groups[0]["lr"] == 0.05
    assert ours.param_groups[0]["moments"] == "amsgrad"
    key = "max_exp_avg_sq" if amsgrad else "exp_avg_sq"
    torch.testing.assert_close(state["max_exp_avg_sq"], theirs.state[param][key])
    assert float(state["step"]) == 1
    step([param], ours)


def test_a_checkpoint_with_other_moments_or_state_is_refused_and_changes_nothing():
    params, optimizer = quadratic(moments="adagrad")
    step(params, optimizer)
    before = copy.deepcopy(optimizer.state_dict())
    other_params, other = quadratic(moments="amsgrad")
    step(other_params, other)
    with pytest.raises(ValueError, match=r"moments='amsgrad'.*'adagrad'"):
        optimizer.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match="2 param groups"):
        optimizer.load_state_dict(quadratic(2, moments="adagrad")[1].state_dict())
    sgd = torch.optim.SGD(other_params, lr=0.1, momentum=0.9)
    step(other_params, sgd)
    with pytest.raises(ValueError, match="found no step, sum"):
        optimizer.load_state_dict(sgd.state_dict())
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    assert torch.equal(after["state"][0]["sum"], before["state"][0]["sum"])


def test_a_fused_checkpoint_does_not_bypass_the_update_weighting():
    param = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    theirs = torch.optim.Adam([param], amsgrad=True, fused=True)
    step([param], theirs)
    ours = dasgrad.DASGrad([param], weighting="update", foreach=False)
    ours.load_state_dict(theirs.state_dict())
    assert ours.param_groups[0]["fused"] is None
    assert ours.param_groups[0]["foreach"] is False
    bad = theirs.state_dict()
    bad["param_groups"][0]["betas"] = (1.5, 0.9)
    with pytest.raises(ValueError, match=r"betas=.*1\.5"):
        ours.load_state_dict(bad)


def test_copies_and_pickles_go_on_alike():
    params, optimizer = quadratic()
    step(params, optimizer)
    for twins, twin in (copy.deepcopy((params, optimizer)), pickle.loads(pickle.dumps((params, optimizer)))):
        step(twins, twin)
        assert not torch.equal(twins[0], params[0])


def test_torch_schedulers_compose():
    (param,), optimizer = quadratic()
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    step([param], optimizer)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] < 0.1


def test_inverse_sqrt_lr_is_alpha_over_root_t_and_resumes():
    (param,), optimizer = quadratic()
    scheduler = dasgrad.InverseSqrtLR(optimizer)
    rates = []
    for _ in range(9):
        rates.append(optimizer.param_groups[0]["lr"])
        step([param], optimizer)
        scheduler.step()
    torch.testing.assert_close(torch.tensor(rates), 0.1 / torch.arange(1, 10).sqrt())
    again = dasgrad.InverseSqrtLR(quadratic()[1])
    again.load_state_dict(scheduler.state_dict())
    assert again.last_epoch == 9
    assert again.get_last_lr() == scheduler.get_last_lr()


def test_beta1_decay_falls_as_stated_and_resumes():
    (_, _), optimizer = quadratic(2)
    decay = dasgrad.Beta1Decay(optimizer, power=0.5)
    seen = []
    for _ in range(4):
        seen.append(optimizer.param_groups[1]["betas"][0])
        decay.step()
    assert seen == [0.9 / t**0.5 for t in range(1, 5)]
    again = dasgrad.Beta1Decay(optimizer)
    again.load_state_dict(decay.state_dict())
    again.step()
    assert optimizer.param_groups[0]["betas"] == (0.9 / 6**0.5, 0.99)


def test_update_weighting_accumulates_and_is_cleared():
    (param,), optimizer = quadratic(weighting="update")
    param.square().sum().backward()
    with pytest.raises(ValueError, match="needs weighted gradients"):
        optimizer.step()
    optimizer.accumulate_update_grads([torch.ones(2)], 0.5)
    optimizer.zero_grad()
    param.square().sum().backward()
    with pytest.raises(ValueError, match="needs weighted gradients"):
        optimizer.step()
    for _ in range(2):
        optimizer.accumulate_update_grads([torch.ones(2)], 0.5)
    twin = torch.nn.Parameter(param.detach().clone())
    twin.grad = param.grad.clone()
    other = dasgrad.DASGrad([twin], lr=0.1, weighting="update")
    other.step(update_grads=[2 * torch.ones(2)], mean_weight=1.0)
    optimizer.step()
    assert torch.equal(param, twin)
    with pytest.raises(ValueError, match="needs weighted gradients"):
        optimizer.step()


BAD_OPTIONS = [
    ({"lr": -1.0}, r"lr=.*at least 0.*-1\.0"),
    ({"lr": float("nan")}, r"lr=.*nan"),
    ({"lr": torch.ones(2)}, r"lr=.*one element"),
    ({"betas": (1.0, 0.9)}, r"betas=.*\[0, 1\).*1\.0"),
    ({"betas": (0.9,)}, r"betas=.*two numbers"),
    ({"eps": -1e-8}, r"eps=.*at least 0.*-1e-08"),
    ({"weight_decay": -0.1}, r"weight_decay=.*at least 0.*-0\.1"),
    ({"moments": "adadelta"}, r"moments.*'sgd'.*'adadelta'"),
    ({"weighting": "both"}, r"weighting=.*'gradient' or 'update'.*'both'"),
    ({"projection": 3}, r"projection=.*callable.*3"),
    ({"fused": True, "foreach": True}, r"cannot both be True"),
    ({"fused": True, "moments": "sgd"}, r"fused=True.*'adam' or 'amsgrad'.*'sgd'"),
    ({"fused": True, "weighting": "update"}, r"fused=True.*'gradient'.*'update'"),
    ({"fused": True, "eps": 0.0}, r"fused=True.*eps > 0"),
    ({"foreach": True, "moments": dasgrad.moments.Moments()}, r"foreach=True.*built-in"),
]


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS)
def test_bad_options_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        dasgrad.DASGrad([torch.nn.Parameter(torch.zeros(2))], **options)


def test_groups_must_agree_on_the_weighting():
    _, optimizer = quadratic()
    with pytest.raises(ValueError, match="same in all param groups"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))], "weighting": "update"})
    assert len(optimizer.param_groups) == 1


def test_complex_parameters_and_sparse_gradients_are_refused():
    with pytest.raises(TypeError, match="complex"):
        dasgrad.DASGrad([torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))])
    embedding = torch.nn.Embedding(5, 2, sparse=True)
    optimizer = dasgrad.DASGrad(embedding.parameters())
    embedding(torch.tensor([1])).sum().backward()
    before = embedding.weight.detach().clone()
    with pytest.raises(ValueError, match="dense gradients"):
        optimizer.step()
    assert torch.equal(before, embedding.weight)


@pytest.mark.parametrize("path", [{}, {"fused": True}, {"foreach": True}, {"foreach": False, "fused": False}])
def test_a_parameter_of_another_shape_is_refused_before_anything_is_stepped(path):
    """The fused kernel would write past the end of the moments it has."""
    params, optimizer = quadratic(2, **path)
    step(params, optimizer)
    params[1].data, params[1].grad = torch.ones(3000), None
    sum(p.square().sum() for p in params).backward()
    before = params[0].detach().clone()
    with pytest.raises(ValueError, match=r"moments of shape \(2,\) for a parameter that now has shape \(3000,\)"):
        optimizer.step()
    assert torch.equal(params[0], before)
    assert optimizer.state[params[0]]["step"] == 1


@pytest.mark.parametrize("path", [{}, {"fused": True}, {"foreach": True}, {"foreach": False, "fused": False}])
def test_an_older_gradient_of_another_shape_is_refused_by_a_new_optimizer(path):
    """The fused kernel would read past its end. What was refused leaves no state behind, and so a state that loads."""
    params, _ = quadratic(2)
    params[1].grad, params[1].data = torch.ones(2), torch.ones(3000)
    params[0].grad = torch.ones(2)
    optimizer = dasgrad.DASGrad(params, lr=0.1, **path)
    with pytest.raises(ValueError, match=r"gradient of shape \(2,\) for a parameter that now has shape \(3000,\)"):
        optimizer.step()
    assert not optimizer.state
    optimizer.load_state_dict(optimizer.state_dict())


def test_bad_update_gradients_are_refused():
    (param,), optimizer = quadratic(weighting="update")
    param.square().sum().backward()
    with pytest.raises(ValueError, match="one entry for each of the 1 parameters, got 2"):
        optimizer.step(update_grads=[None, None], mean_weight=1.0)
    with pytest.raises(ValueError, match=r"shape \(2,\), got \(3,\)"):
        optimizer.step(update_grads=[torch.zeros(3)], mean_weight=1.0)
    with pytest.raises(ValueError, match="together"):
        optimizer.step(update_grads=[torch.zeros(2)])
    (other,), plain = quadratic()
    other.square().sum().backward()
    with pytest.raises(ValueError, match='weighting="update"'):
        plain.step(update_grads=[torch.zeros(2)], mean_weight=1.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dasgrad.Beta1Decay(quadratic()[1], power=-1), "power=.*-1"),
        (lambda: dasgrad.Beta1Decay(quadratic(bias_correction=True)[1]), "bias correction"),
        (lambda: dasgrad.Beta1Decay(quadratic(capturable=True)[1]), "capturable"),
        (lambda: dasgrad.Beta1Decay(torch.optim.SGD([torch.zeros(1)], lr=0.1)), "betas"),
    ],
)
def test_beta1_decay_refuses_what_it_cannot_serve(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("path", [{"foreach": False}, {"foreach": True}, {"fused": True}])
@pytest.mark.parametrize("bias_correction", [False, True])
def test_capturable_takes_the_same_steps(path, bias_correction):
    results = []
    for capturable in (False, True):
        params, optimizer = quadratic(capturable=capturable, bias_correction=bias_correction, **path)
        for _ in range(5):
            step(params, optimizer)
        results.append(params[0].detach())
    torch.testing.assert_close(results[0], results[1], rtol=1e-6, atol=1e-7)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, torch sees none")
@pytest.mark.parametrize("moments", ["sgd", "adagrad", "rmsprop", "adam", "amsgrad"])
@pytest.mark.parametrize("path", [{"foreach": False}, {"foreach": True}, {}])
def test_a_cuda_graph_captures_a_step(moments, path):
    projection = dasgrad.projections.L2Ball(1.5)
    params = [torch.nn.Parameter(torch.ones(3, device="cuda")) for _ in range(2)]
    eager, captured = (
        dasgrad.DASGrad([p], lr=0.1, moments=moments, capturable=True, projection=projection, **path) for p in params
    )
    for p in params:
        p.grad = torch.linspace(-1, 1, 3, device="cuda")
    eager.step()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        captured.step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured.step()
    for _ in range(4):
        eager.step()
        graph.replay()
    torch.testing.assert_close(params[0], params[1])
