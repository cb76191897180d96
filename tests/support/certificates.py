"""A certificate for tests that speak TLS."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path


def make_certificate(folder: Path) -> str:
    """Write a certificate of 127.0.0.1, signed by itself, with its key, and return its path."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now.replace(year=2099))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "c.pem").write_bytes(made.public_bytes(pem) + key.private_bytes(pem, *plain))
    return str(folder / "c.pem")
