package locks

// Each lock has a type of its own, in the order of the table.
type (
	SidecarPuts     struct{}
	Pins            struct{}
	Changes         struct{}
	Writer          struct{}
	Growing         struct{}
	Capacity        struct{}
	Mark            struct{}
	RootRow         struct{}
	Suspects        struct{}
	Events          struct{}
	GroupHeaders    struct{}
	RebuildTelling  struct{}
	Rebuild         struct{}
	RebuildGroup    struct{}
	RebuildShard    struct{}
	RebuildScopes   struct{}
	RebuildRows     struct{}
	LogCache        struct{}
	Session         struct{}
	TwoPointers     struct{}
	Wanted          struct{}
	WriteBack       struct{}
	Prefetcher      struct{}
	Profile         struct{}
	Cleaner         struct{}
	Tasks           struct{}
	Space           struct{}
	Names           struct{}
	MemoryCache     struct{}
	MemoryHandle    struct{}
	MemoryArena     struct{}
	Pinning         struct{}
	Flusher         struct{}
	ReadQueue       struct{}
	CatalogRelease  struct{}
	CatalogRoot     struct{}
	CatalogFiles    struct{}
	CatalogHealth   struct{}
	CatalogVisitor  struct{}
	CatalogSpares   struct{}
	DeviceGrow      struct{}
	DeviceThrottled struct{}
	DeviceFault     struct{}
	DeviceMemory    struct{}
	DevicePool      struct{}
	DeviceRing      struct{}
	Acceptances     struct{}
	CallBytes       struct{}
	Flights         struct{}
	Intents         struct{}
	Joins           struct{}
	KindCounts      struct{}
	Leases          struct{}
	LogRing         struct{}
	Marks           struct{}
	Numbers         struct{}
	OpenBytes       struct{}
	OwedRows        struct{}
	Pendings        struct{}
	ProfilePending  struct{}
	Programs        struct{}
	Rate            struct{}
	Repairs         struct{}
	Rivals          struct{}
	Sections        struct{}
	SeldomMessages  struct{}
	Sessions        struct{}
	Sidecars        struct{}
	Waiter          struct{}
	Wear            struct{}
	Workers         struct{}
	Works           struct{}
)

// Lock is a row of the table.
type Lock struct {
	Name any    // a value of the lock's type
	What string // what it guards, and over what it is held
	// Leaf: nothing is taken under it.
	Leaf bool
	// Several: one goroutine may hold several of its kind at once.
	Several bool
}

// Order is the table, the outermost lock first.
var Order = []Lock{
	{Name: SidecarPuts{}, What: "one put of sidecar rows after the other, over commits"},
	{Name: Pins{}, What: "pins, over reads of the catalog and a wait for changes"},
	{Name: Changes{}, What: "changes of rows that exist: deletes, replacements, moves; over commits"},
	{Name: Writer{}, What: "a block that is written piece by piece"},
	{Name: Growing{}, What: "drives that grow, over I/O"},
	{Name: Capacity{}, What: "what drives have, and what of it may be used"},
	{Name: Mark{}, What: "the durable watermark, over flushes and its commit"},
	{Name: RootRow{}, What: "making and committing the root row"},
	{Name: Suspects{}, What: "groups that failures made stale"},
	{Name: Events{}, What: "the log of events, over the snapshot that begins one"},
	{Name: GroupHeaders{}, What: "a group's headers, over writing them"},
	{Name: RebuildTelling{}, What: "a rebuild's progress, over its callback"},
	{Name: Rebuild{}, What: "what a rebuild has found"},
	{Name: RebuildGroup{}, What: "a group that a rebuild has found"},
	{Name: RebuildShard{}, What: "a shard of the records that a rebuild has found"},
	{Name: RebuildScopes{}, What: "names that a rebuild has found"},
	{Name: RebuildRows{}, What: "rows on their way to the catalog that a rebuild makes"},
	{Name: LogCache{}, What: "pages of logs that a repair reads, over reading them"},
	{Name: Session{}, What: "one restore's state"},
	{Name: TwoPointers{}, What: "the scheduler of what is recomputed and what is loaded"},
	{Name: Wanted{}, What: "what several sessions want, or read"},
	{Name: WriteBack{}, What: "blocks that wait to be written"},
	{Name: Prefetcher{}, What: "what is read ahead"},
	{Name: Profile{}, What: "who reads what together"},
	{Name: Cleaner{}, What: "what the cleaner waits for"},
	{Name: Tasks{}, What: "what the operator asked for, and how far it is"},
	{Name: Space{}, What: "groups, free segments, fillers"},
	{Name: Names{}, What: "tenants and namespaces, to change them: they are read without a lock"},
	{Name: MemoryCache{}, What: "the DRAM tier"},
	{Name: MemoryHandle{}, What: "a handle of an entry of the DRAM tier, over a copy of references", Several: true},
	{Name: MemoryArena{}, What: "free memory"},
	{Name: Pinning{}, What: "memory that is registered with the drives"},
	{Name: Flusher{}, What: "flushes of a drive"},
	{Name: ReadQueue{}, What: "reads that a drive has, or that wait for it"},
	{Name: CatalogRelease{}, What: "what is given back to the catalog's disk"},
	{Name: CatalogRoot{}, What: "the root row as it is in the catalog"},
	{Name: CatalogFiles{}, What: "files of the catalog that are checked as they are read"},
	{Name: CatalogHealth{}, What: "what the catalog has failed at"},
	{Name: CatalogVisitor{}, What: "a scan of the catalog by several"},
	{Name: CatalogSpares{}, What: "room that is kept for the catalog"},
	{Name: DeviceGrow{}, What: "the length of a file that grows"},
	{Name: DeviceThrottled{}, What: "a device that is made slow"},
	{Name: DeviceFault{}, What: "a device that is made to fail"},
	{Name: DeviceMemory{}, What: "a device in memory"},
	{Name: DevicePool{}, What: "the queue of threads that do I/O"},
	{Name: DeviceRing{}, What: "io_uring's queue"},
	{Name: Acceptances{}, What: "puts that were accepted and are not written", Leaf: true},
	{Name: CallBytes{}, What: "memory of calls under way", Leaf: true},
	{Name: Flights{}, What: "puts of one key at a time", Leaf: true},
	{Name: Intents{}, What: "what the devices are to be told", Leaf: true},
	{Name: Joins{}, What: "reads that several chunks wait for", Leaf: true},
	{Name: KindCounts{}, What: "errors counted by kind", Leaf: true},
	{Name: Leases{}, What: "leases", Leaf: true},
	{Name: LogRing{}, What: "the last lines of the log", Leaf: true},
	{Name: Marks{}, What: "how far each drive is flushed", Leaf: true},
	{Name: Numbers{}, What: "the highest numbers of namespaces and instances", Leaf: true},
	{Name: OpenBytes{}, What: "memory of blocks that are written piece by piece", Leaf: true},
	{Name: OwedRows{}, What: "rows that are to be deleted", Leaf: true},
	{Name: Pendings{}, What: "puts between their commit and their place in the index", Leaf: true},
	{Name: ProfilePending{}, What: "what the profile has not taken in", Leaf: true},
	{Name: Programs{}, What: "who uses the store", Leaf: true},
	{Name: Rate{}, What: "a moving average", Leaf: true},
	{Name: Repairs{}, What: "blocks that wait for repair", Leaf: true},
	{Name: Rivals{}, What: "puts of a key that is being put", Leaf: true},
	{Name: Sections{}, What: "who writes names of namespaces", Leaf: true},
	{Name: SeldomMessages{}, What: "messages that are not repeated", Leaf: true},
	{Name: Sessions{}, What: "open sessions", Leaf: true},
	{Name: Sidecars{}, What: "sidecar rows in memory", Leaf: true},
	{Name: Waiter{}, What: "operations of devices that one waits for", Leaf: true},
	{Name: Wear{}, What: "what the drives say of themselves", Leaf: true},
	{Name: Workers{}, What: "the queue of work on bytes", Leaf: true},
	{Name: Works{}, What: "background work, by kind", Leaf: true},
}
