"""The store: discardable binaries on disk. It never makes a call fail: any fault in it is a counted miss."""

from .entry import header as header
from .key import KINDS as KINDS
from .key import SCHEMA as SCHEMA
from .key import Key as Key
from .level import Entry as Entry
from .store import MAX_ENTRIES as MAX_ENTRIES
from .store import MAX_MIB as MAX_MIB
from .store import Store as Store
from .store import open_store as open_store
from .store import store_for as store_for
from .store import user_root as user_root
