"""The broker's own certificate authority: made once, signs the servers' certificates.

P-256 keys and X.509 v3 (RFC 5280), by `cryptography`. The authority signs nothing but servers, so
its certificate in a credentials file says: this broker, and no other.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, CertificateBuilder, GeneralName, Name

CA_DAYS = 3650
SERVER_DAYS = 825  # what clients accept of a server at most (CA/Browser Forum, 2018 to 2020)
_SLACK = timedelta(hours=1)  # of a clock that goes behind ours


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, PEM both."""

    certificate: str
    key: str = field(repr=False)


def new_authority(name: str, now: datetime | None = None) -> Pair:
    """A self-signed authority named `name`."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    certificate = (
        _builder(subject, subject, key, CA_DAYS, now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    return _pair(certificate, key, key)


def new_server(authority: Pair, hosts: Sequence[str], now: datetime | None = None) -> Pair:
    """A certificate for a server reached under `hosts` (names and addresses), and for its
    connections to its own cluster's other servers."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    signer = serialization.load_pem_private_key(authority.key.encode(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    issuer = x509.load_pem_x509_certificate(authority.certificate.encode())
    key = ec.generate_private_key(ec.SECP256R1())
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        _builder(_name(hosts[0]), issuer.subject, key, SERVER_DAYS, now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), False)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    )
    return _pair(certificate, key, signer)


def expires(certificate: str) -> datetime:
    """When a PEM certificate ends. Raises ValueError."""
    from cryptography import x509

    found: Certificate = x509.load_pem_x509_certificate(certificate.encode())
    return found.not_valid_after_utc


def check_pair(pair: Pair, now: datetime | None = None) -> str:
    """Why no server can show this certificate; '' where one can."""
    from cryptography.hazmat.primitives import serialization

    why = check_authority(pair.certificate, now)
    if why:
        return why
    try:
        key = serialization.load_pem_private_key(pair.key.encode(), None)
    except (ValueError, TypeError):  # TypeError: it asks for a password
        return "the key is no private key in PEM, or asks for a password"
    form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    same = key.public_key().public_bytes(*form) == _public(pair.certificate)
    return "" if same else "the key is not that of the certificate"


def check_authority(certificate: str, now: datetime | None = None) -> str:
    """Why nobody can trust by this certificate; '' where one can."""
    try:
        end = expires(certificate)
    except ValueError:
        return "there is no certificate in PEM"
    return "" if end > (now or datetime.now(UTC)) else f"the certificate ended {end:%Y-%m-%d}"


def _public(certificate: str) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    found = x509.load_pem_x509_certificate(certificate.encode()).public_key()
    form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    return found.public_bytes(*form)


def _host(text: str) -> GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _name(text: str) -> Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _builder(
    subject: Name, issuer: Name, key: EllipticCurvePrivateKey, days: int, now: datetime | None
) -> CertificateBuilder:
    from cryptography import x509

    start = now or datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - _SLACK)
        .not_valid_after(start + timedelta(days=days))
    )


def _pair(
    builder: CertificateBuilder, key: EllipticCurvePrivateKey, signer: EllipticCurvePrivateKey
) -> Pair:
    from cryptography.hazmat.primitives import hashes, serialization

    pem = serialization.Encoding.PEM
    form, bare = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    certificate = builder.sign(signer, hashes.SHA256())
    return Pair(certificate.public_bytes(pem).decode(), key.private_bytes(pem, form, bare).decode())
