from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REASON_UNSPECIFIED: _ClassVar[Reason]
    REASON_OTHER_FEDERATION: _ClassVar[Reason]
    REASON_GATEWAY_NAME: _ClassVar[Reason]
    REASON_APP_NOT_ALLOWED: _ClassVar[Reason]
    REASON_PROTOCOL_TOO_OLD: _ClassVar[Reason]
    REASON_PLAIN_REFUSED: _ClassVar[Reason]
    REASON_SCHEME: _ClassVar[Reason]
    REASON_POLICY: _ClassVar[Reason]
    REASON_LIMITS: _ClassVar[Reason]
    REASON_CERTIFICATE: _ClassVar[Reason]
    REASON_MEMBER_LIST: _ClassVar[Reason]
    REASON_CTX_DIFFERS: _ClassVar[Reason]
    REASON_ROSTER: _ClassVar[Reason]
    REASON_SHARES: _ClassVar[Reason]
    REASON_SURVIVORS: _ClassVar[Reason]
    REASON_VOTES: _ClassVar[Reason]
    REASON_WOULD_DIFFERENCE: _ClassVar[Reason]
    REASON_ATTEMPT_CLOSED: _ClassVar[Reason]
    REASON_NEW_PROCESS: _ClassVar[Reason]
    REASON_JOURNAL: _ClassVar[Reason]
    REASON_NOT_FINITE: _ClassVar[Reason]
    REASON_UNDECLARED_METRIC: _ClassVar[Reason]
    REASON_TASK_FAILED: _ClassVar[Reason]
    REASON_GOODBYE: _ClassVar[Reason]
    REASON_PAUSED: _ClassVar[Reason]

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    PHASE_TRAIN: _ClassVar[Phase]
    PHASE_EVALUATE: _ClassVar[Phase]
REASON_UNSPECIFIED: Reason
REASON_OTHER_FEDERATION: Reason
REASON_GATEWAY_NAME: Reason
REASON_APP_NOT_ALLOWED: Reason
REASON_PROTOCOL_TOO_OLD: Reason
REASON_PLAIN_REFUSED: Reason
REASON_SCHEME: Reason
REASON_POLICY: Reason
REASON_LIMITS: Reason
REASON_CERTIFICATE: Reason
REASON_MEMBER_LIST: Reason
REASON_CTX_DIFFERS: Reason
REASON_ROSTER: Reason
REASON_SHARES: Reason
REASON_SURVIVORS: Reason
REASON_VOTES: Reason
REASON_WOULD_DIFFERENCE: Reason
REASON_ATTEMPT_CLOSED: Reason
REASON_NEW_PROCESS: Reason
REASON_JOURNAL: Reason
REASON_NOT_FINITE: Reason
REASON_UNDECLARED_METRIC: Reason
REASON_TASK_FAILED: Reason
REASON_GOODBYE: Reason
REASON_PAUSED: Reason
PHASE_UNSPECIFIED: Phase
PHASE_TRAIN: Phase
PHASE_EVALUATE: Phase

class Setting(_message.Message):
    __slots__ = ("key", "integer", "real", "text", "flag", "raw")
    KEY_FIELD_NUMBER: _ClassVar[int]
    INTEGER_FIELD_NUMBER: _ClassVar[int]
    REAL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    key: str
    integer: int
    real: float
    text: str
    flag: bool
    raw: bytes
    def __init__(self, key: _Optional[str] = ..., integer: _Optional[int] = ..., real: _Optional[float] = ..., text: _Optional[str] = ..., flag: bool = ..., raw: _Optional[bytes] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("protocol", "scheme", "run", "round", "phase", "attempt", "config", "params", "model_digest", "model_bytes", "manifest")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    MODEL_BYTES_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    scheme: str
    run: str
    round: int
    phase: Phase
    attempt: int
    config: _containers.RepeatedCompositeFieldContainer[Setting]
    params: _containers.RepeatedCompositeFieldContainer[Setting]
    model_digest: bytes
    model_bytes: int
    manifest: str
    def __init__(self, protocol: _Optional[int] = ..., scheme: _Optional[str] = ..., run: _Optional[str] = ..., round: _Optional[int] = ..., phase: _Optional[_Union[Phase, str]] = ..., attempt: _Optional[int] = ..., config: _Optional[_Iterable[_Union[Setting, _Mapping]]] = ..., params: _Optional[_Iterable[_Union[Setting, _Mapping]]] = ..., model_digest: _Optional[bytes] = ..., model_bytes: _Optional[int] = ..., manifest: _Optional[str] = ...) -> None: ...

class Roster(_message.Message):
    __slots__ = ("entries", "keys_signatures", "certificates", "members")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    KEYS_SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATES_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    entries: bytes
    keys_signatures: _containers.RepeatedScalarFieldContainer[bytes]
    certificates: _containers.RepeatedScalarFieldContainer[bytes]
    members: int
    def __init__(self, entries: _Optional[bytes] = ..., keys_signatures: _Optional[_Iterable[bytes]] = ..., certificates: _Optional[_Iterable[bytes]] = ..., members: _Optional[int] = ...) -> None: ...

class Inbox(_message.Message):
    __slots__ = ("u2", "blobs")
    U2_FIELD_NUMBER: _ClassVar[int]
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    u2: bytes
    blobs: _containers.RepeatedCompositeFieldContainer[Sealed]
    def __init__(self, u2: _Optional[bytes] = ..., blobs: _Optional[_Iterable[_Union[Sealed, _Mapping]]] = ...) -> None: ...

class Sealed(_message.Message):
    __slots__ = ("blob", "mask_share_hash", "seed_share_hash")
    BLOB_FIELD_NUMBER: _ClassVar[int]
    MASK_SHARE_HASH_FIELD_NUMBER: _ClassVar[int]
    SEED_SHARE_HASH_FIELD_NUMBER: _ClassVar[int]
    blob: bytes
    mask_share_hash: bytes
    seed_share_hash: bytes
    def __init__(self, blob: _Optional[bytes] = ..., mask_share_hash: _Optional[bytes] = ..., seed_share_hash: _Optional[bytes] = ...) -> None: ...

class Survivors(_message.Message):
    __slots__ = ("u", "masked")
    U_FIELD_NUMBER: _ClassVar[int]
    MASKED_FIELD_NUMBER: _ClassVar[int]
    u: bytes
    masked: _containers.RepeatedCompositeFieldContainer[MaskedHeader]
    def __init__(self, u: _Optional[bytes] = ..., masked: _Optional[_Iterable[_Union[MaskedHeader, _Mapping]]] = ...) -> None: ...

class MaskedHeader(_message.Message):
    __slots__ = ("u2_hash", "y_hash", "signature")
    U2_HASH_FIELD_NUMBER: _ClassVar[int]
    Y_HASH_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    u2_hash: bytes
    y_hash: bytes
    signature: bytes
    def __init__(self, u2_hash: _Optional[bytes] = ..., y_hash: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Votes(_message.Message):
    __slots__ = ("votes",)
    VOTES_FIELD_NUMBER: _ClassVar[int]
    votes: _containers.RepeatedCompositeFieldContainer[CountedVote]
    def __init__(self, votes: _Optional[_Iterable[_Union[CountedVote, _Mapping]]] = ...) -> None: ...

class CountedVote(_message.Message):
    __slots__ = ("position", "signature")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    position: int
    signature: bytes
    def __init__(self, position: _Optional[int] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: Reason
    def __init__(self, reason: _Optional[_Union[Reason, str]] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ToClient(_message.Message):
    __slots__ = ("ctx", "start", "roster", "inbox", "survivors", "votes", "close", "goodbye")
    CTX_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    INBOX_FIELD_NUMBER: _ClassVar[int]
    SURVIVORS_FIELD_NUMBER: _ClassVar[int]
    VOTES_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    ctx: bytes
    start: Start
    roster: Roster
    inbox: Inbox
    survivors: Survivors
    votes: Votes
    close: Close
    goodbye: Goodbye
    def __init__(self, ctx: _Optional[bytes] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., roster: _Optional[_Union[Roster, _Mapping]] = ..., inbox: _Optional[_Union[Inbox, _Mapping]] = ..., survivors: _Optional[_Union[Survivors, _Mapping]] = ..., votes: _Optional[_Union[Votes, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ...) -> None: ...

class Keys(_message.Message):
    __slots__ = ("mask_pk", "seal_pk", "signature")
    MASK_PK_FIELD_NUMBER: _ClassVar[int]
    SEAL_PK_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    mask_pk: bytes
    seal_pk: bytes
    signature: bytes
    def __init__(self, mask_pk: _Optional[bytes] = ..., seal_pk: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Shares(_message.Message):
    __slots__ = ("commitment", "blobs", "signature")
    COMMITMENT_FIELD_NUMBER: _ClassVar[int]
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    commitment: bytes
    blobs: _containers.RepeatedCompositeFieldContainer[Sealed]
    signature: bytes
    def __init__(self, commitment: _Optional[bytes] = ..., blobs: _Optional[_Iterable[_Union[Sealed, _Mapping]]] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Masked(_message.Message):
    __slots__ = ("header", "bytes")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    header: MaskedHeader
    bytes: int
    def __init__(self, header: _Optional[_Union[MaskedHeader, _Mapping]] = ..., bytes: _Optional[int] = ...) -> None: ...

class Vote(_message.Message):
    __slots__ = ("u2_hash", "u_hash", "signature")
    U2_HASH_FIELD_NUMBER: _ClassVar[int]
    U_HASH_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    u2_hash: bytes
    u_hash: bytes
    signature: bytes
    def __init__(self, u2_hash: _Optional[bytes] = ..., u_hash: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("shares",)
    SHARES_FIELD_NUMBER: _ClassVar[int]
    shares: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, shares: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("reason", "key", "round", "attempt")
    REASON_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    reason: Reason
    key: str
    round: int
    attempt: int
    def __init__(self, reason: _Optional[_Union[Reason, str]] = ..., key: _Optional[str] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class ToServer(_message.Message):
    __slots__ = ("ctx", "keys", "ready", "shares", "masked", "vote", "release", "refusal")
    CTX_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    MASKED_FIELD_NUMBER: _ClassVar[int]
    VOTE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    ctx: bytes
    keys: Keys
    ready: Ready
    shares: Shares
    masked: Masked
    vote: Vote
    release: Release
    refusal: Refusal
    def __init__(self, ctx: _Optional[bytes] = ..., keys: _Optional[_Union[Keys, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., shares: _Optional[_Union[Shares, _Mapping]] = ..., masked: _Optional[_Union[Masked, _Mapping]] = ..., vote: _Optional[_Union[Vote, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("run", "ticket", "certificate", "resume", "version")
    RUN_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    run: str
    ticket: bytes
    certificate: bytes
    resume: bool
    version: str
    def __init__(self, run: _Optional[str] = ..., ticket: _Optional[bytes] = ..., certificate: _Optional[bytes] = ..., resume: bool = ..., version: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("epoch", "time")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    time: int
    def __init__(self, epoch: _Optional[int] = ..., time: _Optional[int] = ...) -> None: ...

class Trust(_message.Message):
    __slots__ = ("issuing", "members")
    ISSUING_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    issuing: _containers.RepeatedScalarFieldContainer[bytes]
    members: bytes
    def __init__(self, issuing: _Optional[_Iterable[bytes]] = ..., members: _Optional[bytes] = ...) -> None: ...

class Up(_message.Message):
    __slots__ = ("seq", "ack", "hello", "message")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    seq: int
    ack: int
    hello: Hello
    message: bytes
    def __init__(self, seq: _Optional[int] = ..., ack: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., message: _Optional[bytes] = ...) -> None: ...

class Down(_message.Message):
    __slots__ = ("seq", "ack", "welcome", "message", "trust", "deserted")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRUST_FIELD_NUMBER: _ClassVar[int]
    DESERTED_FIELD_NUMBER: _ClassVar[int]
    seq: int
    ack: int
    welcome: Welcome
    message: bytes
    trust: Trust
    deserted: bool
    def __init__(self, seq: _Optional[int] = ..., ack: _Optional[int] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., message: _Optional[bytes] = ..., trust: _Optional[_Union[Trust, _Mapping]] = ..., deserted: bool = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("run", "digest", "offset")
    RUN_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    run: str
    digest: bytes
    offset: int
    def __init__(self, run: _Optional[str] = ..., digest: _Optional[bytes] = ..., offset: _Optional[int] = ...) -> None: ...
