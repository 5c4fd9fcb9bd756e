from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Place(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PLACE_DEVICE: _ClassVar[Place]
    PLACE_HOST: _ClassVar[Place]

class LeftBecause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LEFT_OTHER: _ClassVar[LeftBecause]
    LEFT_BROKE: _ClassVar[LeftBecause]
    LEFT_SILENT: _ClassVar[LeftBecause]
    LEFT_DRAINS: _ClassVar[LeftBecause]
    LEFT_REFUSES: _ClassVar[LeftBecause]

class Tail(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TAIL_PAD: _ClassVar[Tail]
    TAIL_DROP: _ClassVar[Tail]

class Rule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RULE_SENT: _ClassVar[Rule]
    RULE_IDS: _ClassVar[Rule]
    RULE_LABELS: _ClassVar[Rule]
    RULE_LEARNED: _ClassVar[Rule]
    RULE_POSITIONS: _ClassVar[Rule]
    RULE_POSITIONS_REAL: _ClassVar[Rule]
    RULE_POSITIONS_ON: _ClassVar[Rule]
    RULE_DOCUMENTS: _ClassVar[Rule]
    RULE_SEAMS: _ClassVar[Rule]
PLACE_DEVICE: Place
PLACE_HOST: Place
LEFT_OTHER: LeftBecause
LEFT_BROKE: LeftBecause
LEFT_SILENT: LeftBecause
LEFT_DRAINS: LeftBecause
LEFT_REFUSES: LeftBecause
TAIL_PAD: Tail
TAIL_DROP: Tail
RULE_SENT: Rule
RULE_IDS: Rule
RULE_LABELS: Rule
RULE_LEARNED: Rule
RULE_POSITIONS: Rule
RULE_POSITIONS_REAL: Rule
RULE_POSITIONS_ON: Rule
RULE_DOCUMENTS: Rule
RULE_SEAMS: Rule

class DescribeRequest(_message.Message):
    __slots__ = ("protocol", "job", "count")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    job: str
    count: bool
    def __init__(self, protocol: _Optional[int] = ..., job: _Optional[str] = ..., count: bool = ...) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("protocol", "server_version", "node", "store", "job", "log_id", "lanes", "batches_per_step", "batches", "keys", "max_body_bytes", "jobs", "node_id", "finite", "layout", "labels_shifted", "ignore_index", "sets", "counting", "counted_so_far", "units", "workers", "snapshot_every", "draining", "incarnation", "unchecked")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    BATCHES_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    MAX_BODY_BYTES_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    FINITE_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    LABELS_SHIFTED_FIELD_NUMBER: _ClassVar[int]
    IGNORE_INDEX_FIELD_NUMBER: _ClassVar[int]
    SETS_FIELD_NUMBER: _ClassVar[int]
    COUNTING_FIELD_NUMBER: _ClassVar[int]
    COUNTED_SO_FAR_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_EVERY_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    UNCHECKED_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    server_version: str
    node: str
    store: str
    job: str
    log_id: bytes
    lanes: int
    batches_per_step: int
    batches: int
    keys: _containers.RepeatedCompositeFieldContainer[KeySpec]
    max_body_bytes: int
    jobs: _containers.RepeatedScalarFieldContainer[str]
    node_id: str
    finite: bool
    layout: str
    labels_shifted: bool
    ignore_index: int
    sets: _containers.RepeatedCompositeFieldContainer[SetSpec]
    counting: bool
    counted_so_far: str
    units: _containers.RepeatedScalarFieldContainer[int]
    workers: int
    snapshot_every: int
    draining: bool
    incarnation: int
    unchecked: bool
    def __init__(self, protocol: _Optional[int] = ..., server_version: _Optional[str] = ..., node: _Optional[str] = ..., store: _Optional[str] = ..., job: _Optional[str] = ..., log_id: _Optional[bytes] = ..., lanes: _Optional[int] = ..., batches_per_step: _Optional[int] = ..., batches: _Optional[int] = ..., keys: _Optional[_Iterable[_Union[KeySpec, _Mapping]]] = ..., max_body_bytes: _Optional[int] = ..., jobs: _Optional[_Iterable[str]] = ..., node_id: _Optional[str] = ..., finite: bool = ..., layout: _Optional[str] = ..., labels_shifted: bool = ..., ignore_index: _Optional[int] = ..., sets: _Optional[_Iterable[_Union[SetSpec, _Mapping]]] = ..., counting: bool = ..., counted_so_far: _Optional[str] = ..., units: _Optional[_Iterable[int]] = ..., workers: _Optional[int] = ..., snapshot_every: _Optional[int] = ..., draining: bool = ..., incarnation: _Optional[int] = ..., unchecked: bool = ...) -> None: ...

class SetSpec(_message.Message):
    __slots__ = ("name", "share", "layout", "labels_shifted", "ignore_index")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    LABELS_SHIFTED_FIELD_NUMBER: _ClassVar[int]
    IGNORE_INDEX_FIELD_NUMBER: _ClassVar[int]
    name: str
    share: float
    layout: str
    labels_shifted: bool
    ignore_index: int
    def __init__(self, name: _Optional[str] = ..., share: _Optional[float] = ..., layout: _Optional[str] = ..., labels_shifted: bool = ..., ignore_index: _Optional[int] = ...) -> None: ...

class KeySpec(_message.Message):
    __slots__ = ("name", "kind", "dtype", "shape", "optional", "place", "min", "max")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    OPTIONAL_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    optional: bool
    place: Place
    min: int
    max: int
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., optional: bool = ..., place: _Optional[_Union[Place, str]] = ..., min: _Optional[int] = ..., max: _Optional[int] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("open", "horizon")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    HORIZON_FIELD_NUMBER: _ClassVar[int]
    open: Open
    horizon: Horizon
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., horizon: _Optional[_Union[Horizon, _Mapping]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("protocol", "job", "log_id", "group", "token", "generation", "rank", "world_size", "batches_per_step", "start", "lanes", "tail", "horizon", "bundles", "given_from", "next", "bytes_limit", "borrower", "uneven", "left")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    BATCHES_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    HORIZON_FIELD_NUMBER: _ClassVar[int]
    BUNDLES_FIELD_NUMBER: _ClassVar[int]
    GIVEN_FROM_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    BYTES_LIMIT_FIELD_NUMBER: _ClassVar[int]
    BORROWER_FIELD_NUMBER: _ClassVar[int]
    UNEVEN_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    job: str
    log_id: bytes
    group: str
    token: str
    generation: int
    rank: int
    world_size: int
    batches_per_step: int
    start: int
    lanes: _containers.RepeatedScalarFieldContainer[int]
    tail: Tail
    horizon: int
    bundles: bool
    given_from: int
    next: int
    bytes_limit: int
    borrower: bytes
    uneven: bool
    left: _containers.RepeatedScalarFieldContainer[LeftBecause]
    def __init__(self, protocol: _Optional[int] = ..., job: _Optional[str] = ..., log_id: _Optional[bytes] = ..., group: _Optional[str] = ..., token: _Optional[str] = ..., generation: _Optional[int] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., batches_per_step: _Optional[int] = ..., start: _Optional[int] = ..., lanes: _Optional[_Iterable[int]] = ..., tail: _Optional[_Union[Tail, str]] = ..., horizon: _Optional[int] = ..., bundles: bool = ..., given_from: _Optional[int] = ..., next: _Optional[int] = ..., bytes_limit: _Optional[int] = ..., borrower: _Optional[bytes] = ..., uneven: bool = ..., left: _Optional[_Iterable[_Union[LeftBecause, str]]] = ...) -> None: ...

class Horizon(_message.Message):
    __slots__ = ("horizon", "finished_step", "next", "bytes_limit", "waited_ms")
    HORIZON_FIELD_NUMBER: _ClassVar[int]
    FINISHED_STEP_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    BYTES_LIMIT_FIELD_NUMBER: _ClassVar[int]
    WAITED_MS_FIELD_NUMBER: _ClassVar[int]
    horizon: int
    finished_step: int
    next: int
    bytes_limit: int
    waited_ms: int
    def __init__(self, horizon: _Optional[int] = ..., finished_step: _Optional[int] = ..., next: _Optional[int] = ..., bytes_limit: _Optional[int] = ..., waited_ms: _Optional[int] = ...) -> None: ...

class ReadReply(_message.Message):
    __slots__ = ("opened", "header", "waiting", "draining", "end", "chunk", "more", "lent")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    LENT_FIELD_NUMBER: _ClassVar[int]
    opened: Opened
    header: BatchHeader
    waiting: Waiting
    draining: Draining
    end: End
    chunk: Chunk
    more: _containers.RepeatedCompositeFieldContainer[ReadReply]
    lent: Lent
    def __init__(self, opened: _Optional[_Union[Opened, _Mapping]] = ..., header: _Optional[_Union[BatchHeader, _Mapping]] = ..., waiting: _Optional[_Union[Waiting, _Mapping]] = ..., draining: _Optional[_Union[Draining, _Mapping]] = ..., end: _Optional[_Union[End, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., more: _Optional[_Iterable[_Union[ReadReply, _Mapping]]] = ..., lent: _Optional[_Union[Lent, _Mapping]] = ...) -> None: ...

class Lent(_message.Message):
    __slots__ = ("lane", "offset", "loan", "arena", "start")
    LANE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOAN_FIELD_NUMBER: _ClassVar[int]
    ARENA_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    lane: int
    offset: int
    loan: int
    arena: int
    start: int
    def __init__(self, lane: _Optional[int] = ..., offset: _Optional[int] = ..., loan: _Optional[int] = ..., arena: _Optional[int] = ..., start: _Optional[int] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("log_id", "lanes", "batches_per_step", "batches", "node", "lends")
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    BATCHES_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    LENDS_FIELD_NUMBER: _ClassVar[int]
    log_id: bytes
    lanes: int
    batches_per_step: int
    batches: int
    node: str
    lends: bool
    def __init__(self, log_id: _Optional[bytes] = ..., lanes: _Optional[int] = ..., batches_per_step: _Optional[int] = ..., batches: _Optional[int] = ..., node: _Optional[str] = ..., lends: bool = ...) -> None: ...

class BatchHeader(_message.Message):
    __slots__ = ("log_id", "lane", "offset", "body_bytes", "crc32c", "values", "counts", "samples", "padding", "epoch", "accounting", "packed", "position", "header_crc32c")
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    BODY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ACCOUNTING_FIELD_NUMBER: _ClassVar[int]
    PACKED_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    HEADER_CRC32C_FIELD_NUMBER: _ClassVar[int]
    log_id: bytes
    lane: int
    offset: int
    body_bytes: int
    crc32c: int
    values: _containers.RepeatedCompositeFieldContainer[NamedValue]
    counts: _containers.RepeatedCompositeFieldContainer[Count]
    samples: _containers.RepeatedCompositeFieldContainer[Sample]
    padding: bool
    epoch: int
    accounting: _containers.RepeatedCompositeFieldContainer[Count]
    packed: PackedRows
    position: int
    header_crc32c: int
    def __init__(self, log_id: _Optional[bytes] = ..., lane: _Optional[int] = ..., offset: _Optional[int] = ..., body_bytes: _Optional[int] = ..., crc32c: _Optional[int] = ..., values: _Optional[_Iterable[_Union[NamedValue, _Mapping]]] = ..., counts: _Optional[_Iterable[_Union[Count, _Mapping]]] = ..., samples: _Optional[_Iterable[_Union[Sample, _Mapping]]] = ..., padding: bool = ..., epoch: _Optional[int] = ..., accounting: _Optional[_Iterable[_Union[Count, _Mapping]]] = ..., packed: _Optional[_Union[PackedRows, _Mapping]] = ..., position: _Optional[int] = ..., header_crc32c: _Optional[int] = ...) -> None: ...

class PackedRows(_message.Message):
    __slots__ = ("sent_bytes", "height", "width", "segments", "labels", "documents", "shifted", "rules")
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    SHIFTED_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    sent_bytes: int
    height: int
    width: int
    segments: int
    labels: bool
    documents: bool
    shifted: bool
    rules: _containers.RepeatedScalarFieldContainer[Rule]
    def __init__(self, sent_bytes: _Optional[int] = ..., height: _Optional[int] = ..., width: _Optional[int] = ..., segments: _Optional[int] = ..., labels: bool = ..., documents: bool = ..., shifted: bool = ..., rules: _Optional[_Iterable[_Union[Rule, str]]] = ...) -> None: ...

class NamedValue(_message.Message):
    __slots__ = ("name", "value", "place")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: Value
    place: Place
    def __init__(self, name: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ..., place: _Optional[_Union[Place, str]] = ...) -> None: ...

class Value(_message.Message):
    __slots__ = ("tensor", "list", "integer", "real", "truth", "text", "raw", "json", "none")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    INTEGER_FIELD_NUMBER: _ClassVar[int]
    REAL_FIELD_NUMBER: _ClassVar[int]
    TRUTH_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    NONE_FIELD_NUMBER: _ClassVar[int]
    tensor: Tensor
    list: List
    integer: int
    real: float
    truth: bool
    text: str
    raw: bytes
    json: str
    none: Nothing
    def __init__(self, tensor: _Optional[_Union[Tensor, _Mapping]] = ..., list: _Optional[_Union[List, _Mapping]] = ..., integer: _Optional[int] = ..., real: _Optional[float] = ..., truth: bool = ..., text: _Optional[str] = ..., raw: _Optional[bytes] = ..., json: _Optional[str] = ..., none: _Optional[_Union[Nothing, _Mapping]] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("dtype", "shape", "start", "nbytes")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    start: int
    nbytes: int
    def __init__(self, dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., start: _Optional[int] = ..., nbytes: _Optional[int] = ...) -> None: ...

class List(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedCompositeFieldContainer[Value]
    def __init__(self, values: _Optional[_Iterable[_Union[Value, _Mapping]]] = ...) -> None: ...

class Nothing(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Count(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: int
    def __init__(self, name: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...

class Sample(_message.Message):
    __slots__ = ("row", "source", "index", "epoch", "part", "start", "stop")
    ROW_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    row: int
    source: str
    index: int
    epoch: int
    part: int
    start: int
    stop: int
    def __init__(self, row: _Optional[int] = ..., source: _Optional[str] = ..., index: _Optional[int] = ..., epoch: _Optional[int] = ..., part: _Optional[int] = ..., start: _Optional[int] = ..., stop: _Optional[int] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("lane", "offset", "start", "data")
    LANE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    lane: int
    offset: int
    start: int
    data: bytes
    def __init__(self, lane: _Optional[int] = ..., offset: _Optional[int] = ..., start: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Waiting(_message.Message):
    __slots__ = ("lane", "offset", "stage", "item", "since_s")
    LANE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    ITEM_FIELD_NUMBER: _ClassVar[int]
    SINCE_S_FIELD_NUMBER: _ClassVar[int]
    lane: int
    offset: int
    stage: str
    item: str
    since_s: float
    def __init__(self, lane: _Optional[int] = ..., offset: _Optional[int] = ..., stage: _Optional[str] = ..., item: _Optional[str] = ..., since_s: _Optional[float] = ...) -> None: ...

class Draining(_message.Message):
    __slots__ = ("detail",)
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    detail: str
    def __init__(self, detail: _Optional[str] = ...) -> None: ...

class End(_message.Message):
    __slots__ = ("batches", "steps", "dropped_batches", "dropped_samples")
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    batches: int
    steps: int
    dropped_batches: int
    dropped_samples: int
    def __init__(self, batches: _Optional[int] = ..., steps: _Optional[int] = ..., dropped_batches: _Optional[int] = ..., dropped_samples: _Optional[int] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...
