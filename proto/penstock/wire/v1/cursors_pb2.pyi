from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BeginRequest(_message.Message):
    __slots__ = ("protocol", "job", "group", "token", "rank", "world_size", "batches_per_step", "start_step", "owner", "store", "uneven")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    BATCHES_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    START_STEP_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    UNEVEN_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    job: str
    group: str
    token: str
    rank: int
    world_size: int
    batches_per_step: int
    start_step: int
    owner: str
    store: str
    uneven: bool
    def __init__(self, protocol: _Optional[int] = ..., job: _Optional[str] = ..., group: _Optional[str] = ..., token: _Optional[str] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., batches_per_step: _Optional[int] = ..., start_step: _Optional[int] = ..., owner: _Optional[str] = ..., store: _Optional[str] = ..., uneven: bool = ...) -> None: ...

class BeginReply(_message.Message):
    __slots__ = ("generation", "batches_per_step", "start_step", "log_id", "store", "joined", "committed_at", "committed_by", "batches_per_step_from", "token", "timeline")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    BATCHES_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    START_STEP_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_AT_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_BY_FIELD_NUMBER: _ClassVar[int]
    BATCHES_PER_STEP_FROM_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    generation: int
    batches_per_step: int
    start_step: int
    log_id: bytes
    store: str
    joined: bool
    committed_at: str
    committed_by: int
    batches_per_step_from: str
    token: str
    timeline: _containers.RepeatedCompositeFieldContainer[LogFrom]
    def __init__(self, generation: _Optional[int] = ..., batches_per_step: _Optional[int] = ..., start_step: _Optional[int] = ..., log_id: _Optional[bytes] = ..., store: _Optional[str] = ..., joined: bool = ..., committed_at: _Optional[str] = ..., committed_by: _Optional[int] = ..., batches_per_step_from: _Optional[str] = ..., token: _Optional[str] = ..., timeline: _Optional[_Iterable[_Union[LogFrom, _Mapping]]] = ...) -> None: ...

class LogFrom(_message.Message):
    __slots__ = ("from_step", "log_id")
    FROM_STEP_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    from_step: int
    log_id: bytes
    def __init__(self, from_step: _Optional[int] = ..., log_id: _Optional[bytes] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("job", "group", "token", "generation", "rank", "step", "all_rows")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ALL_ROWS_FIELD_NUMBER: _ClassVar[int]
    job: str
    group: str
    token: str
    generation: int
    rank: int
    step: int
    all_rows: bool
    def __init__(self, job: _Optional[str] = ..., group: _Optional[str] = ..., token: _Optional[str] = ..., generation: _Optional[int] = ..., rank: _Optional[int] = ..., step: _Optional[int] = ..., all_rows: bool = ...) -> None: ...

class CommitReply(_message.Message):
    __slots__ = ("cursor", "row")
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    cursor: int
    row: int
    def __init__(self, cursor: _Optional[int] = ..., row: _Optional[int] = ...) -> None: ...

class CheckpointRequest(_message.Message):
    __slots__ = ("job", "group", "name", "step")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    job: str
    group: str
    name: str
    step: int
    def __init__(self, job: _Optional[str] = ..., group: _Optional[str] = ..., name: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class CheckpointReply(_message.Message):
    __slots__ = ("name", "step", "log_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    step: int
    log_id: bytes
    def __init__(self, name: _Optional[str] = ..., step: _Optional[int] = ..., log_id: _Optional[bytes] = ...) -> None: ...

class RestoreRequest(_message.Message):
    __slots__ = ("job", "group", "name", "request_id", "owner")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    job: str
    group: str
    name: str
    request_id: str
    owner: str
    def __init__(self, job: _Optional[str] = ..., group: _Optional[str] = ..., name: _Optional[str] = ..., request_id: _Optional[str] = ..., owner: _Optional[str] = ...) -> None: ...

class SeekRequest(_message.Message):
    __slots__ = ("job", "group", "step", "request_id", "owner")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    job: str
    group: str
    step: int
    request_id: str
    owner: str
    def __init__(self, job: _Optional[str] = ..., group: _Optional[str] = ..., step: _Optional[int] = ..., request_id: _Optional[str] = ..., owner: _Optional[str] = ...) -> None: ...

class MoveReply(_message.Message):
    __slots__ = ("generation", "step")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    generation: int
    step: int
    def __init__(self, generation: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("job", "group", "page_token")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    job: str
    group: str
    page_token: str
    def __init__(self, job: _Optional[str] = ..., group: _Optional[str] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListReply(_message.Message):
    __slots__ = ("groups", "store", "next_page_token")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    store: str
    next_page_token: str
    def __init__(self, groups: _Optional[_Iterable[_Union[Group, _Mapping]]] = ..., store: _Optional[str] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("job", "name", "log_id", "batches_per_step", "generation", "owner", "world_size", "start_step", "cursor", "rows", "committed_at", "checkpoints", "committed_by", "committed_owner", "readers")
    JOB_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    BATCHES_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    START_STEP_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_AT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_BY_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_OWNER_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    job: str
    name: str
    log_id: bytes
    batches_per_step: int
    generation: int
    owner: str
    world_size: int
    start_step: int
    cursor: int
    rows: _containers.RepeatedScalarFieldContainer[int]
    committed_at: str
    checkpoints: _containers.RepeatedCompositeFieldContainer[NamedStep]
    committed_by: int
    committed_owner: str
    readers: int
    def __init__(self, job: _Optional[str] = ..., name: _Optional[str] = ..., log_id: _Optional[bytes] = ..., batches_per_step: _Optional[int] = ..., generation: _Optional[int] = ..., owner: _Optional[str] = ..., world_size: _Optional[int] = ..., start_step: _Optional[int] = ..., cursor: _Optional[int] = ..., rows: _Optional[_Iterable[int]] = ..., committed_at: _Optional[str] = ..., checkpoints: _Optional[_Iterable[_Union[NamedStep, _Mapping]]] = ..., committed_by: _Optional[int] = ..., committed_owner: _Optional[str] = ..., readers: _Optional[int] = ...) -> None: ...

class NamedStep(_message.Message):
    __slots__ = ("name", "step", "log_id", "made_at")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    MADE_AT_FIELD_NUMBER: _ClassVar[int]
    name: str
    step: int
    log_id: bytes
    made_at: str
    def __init__(self, name: _Optional[str] = ..., step: _Optional[int] = ..., log_id: _Optional[bytes] = ..., made_at: _Optional[str] = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("job", "group", "generation", "fence", "owner")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    job: str
    group: str
    generation: int
    fence: bool
    owner: str
    def __init__(self, job: _Optional[str] = ..., group: _Optional[str] = ..., generation: _Optional[int] = ..., fence: bool = ..., owner: _Optional[str] = ...) -> None: ...

class DeleteReply(_message.Message):
    __slots__ = ("cursor", "generation", "checkpoints", "fenced")
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    cursor: int
    generation: int
    checkpoints: int
    fenced: int
    def __init__(self, cursor: _Optional[int] = ..., generation: _Optional[int] = ..., checkpoints: _Optional[int] = ..., fenced: _Optional[int] = ...) -> None: ...

class ListVerdictsRequest(_message.Message):
    __slots__ = ("job", "after")
    JOB_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    job: str
    after: int
    def __init__(self, job: _Optional[str] = ..., after: _Optional[int] = ...) -> None: ...

class ListVerdictsReply(_message.Message):
    __slots__ = ("verdicts", "more", "log_id", "max_quarantined")
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    verdicts: _containers.RepeatedCompositeFieldContainer[Verdict]
    more: bool
    log_id: bytes
    max_quarantined: int
    def __init__(self, verdicts: _Optional[_Iterable[_Union[Verdict, _Mapping]]] = ..., more: bool = ..., log_id: _Optional[bytes] = ..., max_quarantined: _Optional[int] = ...) -> None: ...

class ReleaseItemRequest(_message.Message):
    __slots__ = ("job", "source", "index")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    job: str
    source: str
    index: int
    def __init__(self, job: _Optional[str] = ..., source: _Optional[str] = ..., index: _Optional[int] = ...) -> None: ...

class ReleaseItemReply(_message.Message):
    __slots__ = ("verdicts",)
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    verdicts: _containers.RepeatedCompositeFieldContainer[Verdict]
    def __init__(self, verdicts: _Optional[_Iterable[_Union[Verdict, _Mapping]]] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("number", "stage", "source", "index", "epoch", "every_epoch", "lane", "offset", "above", "released", "content_hash", "reason")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EVERY_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ABOVE_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    CONTENT_HASH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    number: int
    stage: str
    source: str
    index: int
    epoch: int
    every_epoch: bool
    lane: int
    offset: int
    above: int
    released: int
    content_hash: str
    reason: str
    def __init__(self, number: _Optional[int] = ..., stage: _Optional[str] = ..., source: _Optional[str] = ..., index: _Optional[int] = ..., epoch: _Optional[int] = ..., every_epoch: bool = ..., lane: _Optional[int] = ..., offset: _Optional[int] = ..., above: _Optional[int] = ..., released: _Optional[int] = ..., content_hash: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...
