"""Encrypts and decrypts a text by AES in counter mode, in pure Python."""

import hashlib
from typing import Any

import pyaes


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Return a digest of `{"text"}` encrypted with a key made of `{"key"}`."""
    text = str(args.get("text", "")).encode()
    key = hashlib.sha256(str(args.get("key", "")).encode()).digest()
    secret = pyaes.AESModeOfOperationCTR(key).encrypt(text)
    if pyaes.AESModeOfOperationCTR(key).decrypt(secret) != text:
        raise RuntimeError("the decrypted text differs from the original")
    return {"digest": hashlib.sha256(secret).hexdigest(), "bytes": len(secret)}


def example(index: int) -> dict[str, Any]:
    """Return the arguments of call number `index` of the benchmark."""
    return {"text": f"message {index} " * 100, "key": f"key {index}"}
