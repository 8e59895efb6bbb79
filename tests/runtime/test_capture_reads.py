"""What the host reads inside a recording, and what counts as a launch."""

import numpy as np
import pyopencl as cl
import pytest

import netcl.ops as ops
from netcl.core.errors import CaptureError
from netcl.core.tensor import Tensor
from netcl.ops import elementwise as E
from netcl.runtime.capture.capture import KernelCapture


def tensor(queue, *values):
    return Tensor.from_host(queue, np.array(values, np.float32))


READS = {
    "to_host": lambda t: t.to_host().tolist(),
    "of a view": lambda t: t.T.to_host().tolist(),
    "item": lambda t: t[1, 0].item(),
    "repr": repr,
    "bool": lambda t: bool(t[0, 0] < 0),
    "tolist": lambda t: t[:, 1].tolist(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_host_read_works_and_is_not_recorded(queue, read):
    """Also of views, whose elements are brought together first."""
    x = Tensor.from_host(queue, np.array([[1.0, 2.0], [3.0, 4.0]], "f4"))
    expected = read(E.mul(x, 2.0))
    cap = KernelCapture()
    cap.begin()
    y = E.mul(x, 2.0)
    assert read(y) == expected
    extra = read is READS["bool"]  # its comparison is work like any other
    z = E.add(y, 1.0)
    read(z)
    assert cap.end() == 2 + 2 * extra
    assert len(cap.launches) == cap.num_launches
    x.fill_(10.0)
    cap.replay()
    assert (z.to_host() == 21).all() and (y.to_host() == 20).all()


def test_only_launches_are_counted(queue):
    """Neither what the host writes nor fills, as on devices."""
    cap = KernelCapture()
    cap.begin()
    x, y = Tensor.from_host(queue, [1.0, 2.0]), Tensor.full(queue, (2,), 3.0)
    z = E.add(x, y)
    y.fill_(5.0)
    assert cap.end() == 1 and len(cap.launches) == 1
    z.fill_(0.0)
    cap.replay()
    assert z.to_host().tolist() == [4, 5] and y.to_host().tolist() == [5, 5]


def test_raw_host_reads_work_and_are_not_recorded(cl_queue):
    x, host = tensor(cl_queue, 1, 2), np.zeros(2, np.float32)
    with KernelCapture() as cap:
        y = E.mul(x, 2.0)
        cl.enqueue_copy(cl_queue, host, y.buffer)
    assert host.tolist() == [2, 4] and len(cap.recording.commands) == 1


@pytest.mark.parametrize("read", [Tensor.to_host, lambda t: t[0].item(), repr, lambda t: bool(t[0])])
def test_host_reads_are_refused_on_demand(queue, read):
    x = tensor(queue, 1, 2)
    cap = KernelCapture(host_reads=False)
    cap.begin()
    y = E.mul(x, 2.0)
    with pytest.raises(CaptureError, match="the host reads"):
        read(y)
    assert not cap.is_recording
    with pytest.raises(CaptureError, match=r"given up: .*host reads"):
        cap.end()
    with pytest.raises(CaptureError, match="given up"):
        cap.replay()
    np.testing.assert_array_equal(y.to_host(), [2, 4])


def test_raw_host_reads_are_refused_on_demand_and_maps_always(cl_queue):
    x = tensor(cl_queue, 1, 2)
    for read, allowed in (
        (lambda: cl.enqueue_copy(cl_queue, np.zeros(2, np.float32), x.buffer), False),
        (lambda: cl.enqueue_map_buffer(cl_queue, x.buffer, cl.map_flags.READ, 0, (2,), np.float32), True),
    ):
        cap = KernelCapture(host_reads=allowed)
        cap.begin()
        with pytest.raises(CaptureError, match="the host"):
            read()


SIZED_BY_DATA = {
    "masked_select": lambda x, mask, i: ops.masked_select(x, mask),
    "nonzero": lambda x, mask, i: ops.nonzero(x),
    "argwhere": lambda x, mask, i: ops.argwhere(x),
    "bincount": lambda x, mask, i: ops.bincount(i),
    "x[mask]": lambda x, mask, i: x[mask],
}


@pytest.mark.parametrize("name", SIZED_BY_DATA)
def test_a_result_whose_size_depends_on_the_data_gives_the_recording_up(queue, name):
    """NumPy could make it, and a replay would then show sizes that OpenCL refuses."""
    given = [Tensor.from_host(queue, a) for a in (np.float32([0, 1, 2]), np.array([True, False, True]), np.arange(3))]
    capture = KernelCapture()
    capture.begin()
    with pytest.raises(CaptureError, match=r"depends on the data, and a replay's is fixed; .*given up"):
        SIZED_BY_DATA[name](*given)
    with pytest.raises(CaptureError, match="given up"):
        capture.end()
    assert SIZED_BY_DATA[name](*given).size  # outside of a recording all is well
