package skep

import (
	"context"
	"fmt"
	"strings"
)

// Sparse keeps contexts entry by entry: what an engine that attends to a tenth of a long
// context needs. It is apart from Store: package store/sparse puts it on top of any Store
// (docs/explanation/sparse.md).
//
// An entry is the KV of one token at one layer: [K,V][head][dim] of an attention shape,
// [dim] of a latent one. A context is the clustered form of one chain of blocks: each
// layer's entries, in records of their own, laid out so that those activated together come
// in few reads of all drives at once. The two live and die together: a context is dropped
// once its chain cannot be found to its last block, dropping a context deletes that block,
// and a purge of the chain's namespace, or of a salt in it, takes the contexts with it.
type Sparse interface {
	// Cluster stores the clustered form of a chain that is stored, and opens it. A context
	// that exists is opened as it is. Reading and writing is one layer at a time, in
	// memory of one layer's size.
	Cluster(ctx context.Context, r *ClusterRequest) (SparseContext, error)
	// OpenContext opens the context of the chain that ends with last; NotFound when there
	// is none, or its chain is gone.
	OpenContext(ctx context.Context, s Scope, last Key) (SparseContext, error)
	// DropContext deletes the chain's last block and the clustered form, appended entries
	// too. The chain's blocks before it stay: they may be the beginning of other chains. One
	// that was interrupted is finished by the next OpenContext, or by calling it again.
	DropContext(ctx context.Context, s Scope, last Key) error
}

// SparseMark follows a namespace's name in the names of those that hold its clustered
// contexts.
const SparseMark = "#sparse"

// Clusters reports whether o holds clustered contexts of n's chains. Purges of n and of
// salts in n apply to o too.
func (n NamespaceSpec) Clusters(o NamespaceSpec) bool {
	rest, ok := strings.CutPrefix(o.Name, n.Name+SparseMark)
	return ok && o.Tenant == n.Tenant && (rest == "" || rest[0] == '-')
}

// ClusterRequest asks for a chain's clustered form.
type ClusterRequest struct {
	Scope
	Keys       []Key // the chain, first block first
	QueryHeads int   // of the model; a multiple of the shape's KV heads (of 1, for a latent shape)
	// DRAM is the bytes a layer may keep in memory: the hottest records. The window and
	// what choosing needs come on top and are in SparseInfo.
	DRAM int64
	// Sample records one observed step in so many; 0: every one.
	Sample int
}

// Observation tells what one step (one decoded token) activated at one layer.
type Observation struct {
	Layer   int
	Entries []uint32 // ascending
	// Weights are the attention each of Entries got, summed over heads, in any unit. Optional;
	// with them and Queries, Select and memory go by attention in place of mere activation,
	// which halves what has to be read (docs/explanation/sparse.md).
	Weights []float32
	// Queries are what selected them: [tokens][query heads × dim]. Optional; with them
	// Select learns which queries activate what.
	Queries []float32
	// Explorative says that the step attended beyond what Select had returned. Only such
	// steps decide about reclustering: others confirm what the layout made them select.
	Explorative bool
}

// Choice is how much Select returns.
type Choice struct {
	Budget    int  // entries beside those in memory
	Overshoot bool // the cluster that passes the budget is let in
}

// Selection is what Select chose.
type Selection struct {
	Clusters []int    // by score; empty where single entries were chosen
	Entries  []uint32 // ascending; those in memory are among them
	Learned  bool     // chosen by what similar steps activated, else by the clusters' keys
}

// FetchResult is what became of a Fetch.
type FetchResult struct {
	Missing []uint32 // entries no copy of which could be read; their destinations are undefined
	DRAM    int      // entries that came from memory
	Joined  int      // entries a prefetch had on the way
	Reads   int      // reads of drives
	Records int      // records read, gaps included
	Balance float64  // mean planned load of the drives ÷ the greatest
}

// SparseContext is one open context. All methods may be called from several goroutines.
type SparseContext interface {
	// Info is the context as it stands.
	Info() SparseInfo
	// Observe learns from a step. It may keep the slices' content, not the slices.
	Observe(ctx context.Context, o Observation) error
	// Select chooses entries for queries: [requests × tokens][query heads × dim].
	Select(ctx context.Context, layer int, queries []float32, c Choice) (Selection, error)
	// Fetch reads entries, in any order, into dst: EntryBytes each. A destination that is
	// aligned to 4 KiB and at least RecordBytes long is read into directly, and up to
	// RecordBytes of it are written; of others EntryBytes. No two may overlap.
	// dst is the store's until Fetch returns, and longer if it returns NotReleased.
	Fetch(ctx context.Context, layer int, entries []uint32, dst [][]byte) (FetchResult, error)
	// Prefetch chooses for queries as they can be foreseen and begins to read; a Fetch of
	// the same entries joins the reads. It does not wait for them, and begins none while two
	// of the layer's are under way.
	Prefetch(ctx context.Context, layer int, foreseen []float32, c Choice) error
	// Append adds one token: an entry of EntryBytes for each layer. It returns the entry's
	// number when the token is stored as the namespace's class promises. The entry waits
	// in the window, and joins a cluster after Window further observed steps. Entries of FP8
	// and I8 join none, and stay in memory: with 4,096 such that are not in a cluster, the next
	// is Invalid.
	Append(ctx context.Context, layers [][]byte) (uint32, error)
	// Recluster lays a layer out anew from what was observed, if that is better on
	// explorative steps that neither layout was built from. Reads go on meanwhile. An
	// interrupted one goes on where it was when it is called again.
	Recluster(ctx context.Context, layer int) (ReclusterResult, error)
	// Clusters describes a layer's clusters, for people.
	Clusters(layer int) (SparseClusters, error)
	// Flush makes what was observed durable. Close does too.
	Flush(ctx context.Context) error
	Close(ctx context.Context) error
}

// SparseInfo is a context as it stands.
type SparseInfo struct {
	Scope       Scope `json:"-"`
	Last        Key   `json:"-"`
	Layers      int   `json:"layers"`       // of the model
	Entries     int   `json:"entries"`      // appended ones included
	Appended    int   `json:"appended"`     // of them, since the chain was clustered (entries)
	EntryBytes  int64 `json:"entry_bytes"`  // of an entry (bytes)
	RecordBytes int64 `json:"record_bytes"` // the same in whole pages (bytes)
	Devices     int   `json:"devices"`      // devices that the records are spread over
	Window      int   `json:"window"`       // an appended entry waits so many (steps)
	// what a read costs its drive beside its pages, as measured so far (s)
	RunSeconds  float64     `json:"run_s"`
	PageSeconds float64     `json:"page_s"`    // what each 4 KiB of a read costs (s)
	PerLayer    []LayerInfo `json:"per_layer"` // each layer's layout
}

// LayerInfo is one layer of a context.
type LayerInfo struct {
	Generation uint64 `json:"generation"`  // of the layout
	Clusters   int    `json:"clusters"`    // clusters of the layer
	Records    int    `json:"records"`     // records, copies counted
	Steps      int    `json:"steps"`       // steps observed
	Resident   int    `json:"resident"`    // in DRAM (entries)
	IndexBytes int64  `json:"index_bytes"` // keys, routes, profile and recall (bytes)
	// medoids, routes and clusters as the Store's rows hold them (Sidecars); 0: in their block alone (bytes)
	RowBytes int64 `json:"row_bytes"`
	// with so many runs, by appended entries, that they should be laid out anew (clusters)
	Overgrown      int     `json:"overgrown"`
	Share          float64 `json:"share"`           // bound ÷ planned time of fetches, moving average
	Decayed        bool    `json:"decayed"`         // share has fallen well below its best
	PrefetchRead   int64   `json:"prefetch_read"`   // read ahead of a step (records)
	PrefetchJoined int64   `json:"prefetch_joined"` // of them, fetched then (records)
}

// ReclusterResult is what became of a reclustering.
type ReclusterResult struct {
	Kept bool `json:"kept"` // the new layout is in use
	// radius of the new layout's clusters, chosen on steps that neither it was made from nor judged by
	Tau     float64 `json:"tau"`
	Reason  string  `json:"reason"`  // why not
	Before  float64 `json:"before"`  // planned read time of a judged step before (s)
	After   float64 `json:"after"`   // planned read time of a judged step with the new layout (s)
	Judged  int     `json:"judged"`  // explorative steps that it was judged by
	Moved   int     `json:"moved"`   // records written
	Resumed bool    `json:"resumed"` // part of it had been written before
}

// SparseClusters describes a layer's clusters.
type SparseClusters struct {
	Sizes   []int     `json:"sizes"`   // entries of each cluster
	Radii   []float64 `json:"radii"`   // largest observed distance to the medoid; 1 where nothing was observed
	Runs    []int     `json:"runs"`    // reads a whole cluster takes
	Copies  float64   `json:"copies"`  // records per entry
	Balance float64   `json:"balance"` // mean records of the devices ÷ the greatest
	// Members lists each cluster's entries, and Places the device of each entry's first
	// copy: what a picture is drawn from.
	Members [][]uint32 `json:"-"`
	Places  []uint32   `json:"-"`
	// Together is, for entries a and b, the steps that activated both; nil when nothing
	// was observed.
	Together func(a, b uint32) int `json:"-"`
}

// MaxSparseEntryBytes is the largest entry of a clustered context.
const MaxSparseEntryBytes = 64 << 10

// Validate returns an Invalid error naming the first field outside its limits.
func (r *ClusterRequest) Validate() error {
	const op = "cluster"
	if len(r.Keys) == 0 || len(r.Keys) > MaxChainKeys {
		return Invalidf(op, "keys", len(r.Keys), fmt.Sprintf("1 to %d", MaxChainKeys))
	}
	if r.QueryHeads < 1 || r.QueryHeads > MaxKVHeads {
		return Invalidf(op, "query heads", r.QueryHeads, fmt.Sprintf("1 to %d", MaxKVHeads))
	}
	if r.DRAM < 0 {
		return Invalidf(op, "dram", r.DRAM, "0 or more")
	}
	if r.Sample < 0 {
		return Invalidf(op, "sample", r.Sample, "0 or more")
	}
	return r.Scope.validate(op)
}
