"""Certificates that a test's own authority vouches for."""

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat


class Authority:
    """Whoever is told to trust `trusted`, as by SSL_CERT_FILE, trusts its servers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named("an authority")
        certificate = self._signed(self._name, self._key, x509.BasicConstraints(True, None))
        self.trusted = folder / "authority.pem"
        self.trusted.write_bytes(certificate)

    def server(self, *names: str) -> ssl.SSLContext:
        """For a server of these names and addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        known = x509.SubjectAlternativeName([_known(name) for name in names])
        form = Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        chain = self._folder / f"{names[0].replace(':', '-')}.pem"
        chain.write_bytes(key.private_bytes(*form) + self._signed(_named(names[0]), key, known))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain)
        return context

    def _signed(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, also: x509.ExtensionType
    ) -> bytes:
        now = datetime.now(UTC)
        built = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(also, critical=isinstance(also, x509.BasicConstraints))
        )
        return built.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _known(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
