import pytest

from dasgrad.sampling import ahead, cumulative_sums, native


@pytest.fixture(scope="module", params=["native", "torch", "search"])
def core(request):
    """Run every test of a module on trees in C++, then in torch operations, then by cumulative sums as on CUDA."""
    if request.param == "native":
        if not native.available():
            pytest.skip("the package was built without its native core")
        yield request.param
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "_library", None)
            if request.param == "search":
                patch.setattr(cumulative_sums, "are_faster_on", lambda device: True)
                patch.setattr(ahead, "come_at_once", lambda device: False)
            yield request.param
