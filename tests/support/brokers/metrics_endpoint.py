"""Requests to a broker's HTTP endpoint, as Prometheus and a supervisor send them."""

import asyncio

from prometheus_client.parser import text_string_to_metric_families


async def exchange(port, request):
    """Send bytes; return the whole response, empty if there is none."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def got(port, path):
    """Send a GET; return status and body."""
    answer = await exchange(port, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


def samples_of(text):
    """Parse metrics: values by name and by the requested labels."""
    return Samples(
        {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
    )


class Samples:
    """The samples of one scrape."""

    def __init__(self, values):
        self._values = values
        self.names = {key[0] for key in values}

    def __call__(self, name, **labels):
        """Return the sum of the samples with this name and these labels; None if there are none."""
        found = [
            value
            for (each, *pairs), value in self._values.items()
            if each == name and labels.items() <= dict(pairs).items()
        ]
        return sum(found) if found else None

    def labels(self, name):
        """Return the label names of a metric."""
        return {label for (each, *pairs) in self._values for label, _ in pairs if each == name}


async def scrape(port):
    __tracebackhide__ = True
    status, text = await got(port, "/metrics")
    assert status == 200
    return samples_of(text)
