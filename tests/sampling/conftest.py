import pytest

from dasgrad.sampling import native


@pytest.fixture(scope="module", params=["native", "torch"])
def core(request):
    """Run every test of a module on trees in C++, then on trees in torch operations."""
    if request.param == "native":
        if not native.available():
            pytest.skip("the package was built without its native core")
        yield request.param
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "_library", None)
            yield request.param
