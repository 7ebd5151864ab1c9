package size

import (
	"fmt"
	"math"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// Ask is what a user knows.
type Ask struct {
	Shape        skep.Shape // BlockTokens included
	Prompts      float64    // a second, of all engines together
	PromptTokens float64    // of each
	Repeat       float64    // share of a prompt's tokens that an earlier prompt began with, 0 to 1
	Keep         float64    // within how many seconds such a prompt comes
	Prefill      float64    // tokens a second that the engines compute, all together
	Nodes        int        // that the engines and the drives are spread over, as many on each; one cluster
	Network      float64    // bytes a second that a node receives; nothing where there is one node
	Drives       int        // of all nodes; 0: as many as are needed
	DriveBytes   int64
	DriveRead    float64 // bytes a second
	DriveWrites  float64 // whole drives a day that it may be written, over Warranty
	Copies       int
}

// Warranty is the years for which drive writes a day are promised.
const Warranty = 5

// What is built into the arithmetic; docs/howto/size.md says why.
const (
	padding    = 1.04 // pages, headers, logs and the groups that are never full
	collection = 1.15 // bytes written for each that is put: garbage collection

	indexBytes   = 64        // a block
	recordBytes  = 100       // of the catalog, a block
	chunkBytes   = 9         // of the catalog, a checksum chunk
	catalogSpare = 250 << 20 // preallocated logs
	dramBytes    = 256 << 20
	ioBytes      = 512 << 20
	otherBytes   = (192 + 256 + 100) << 20 // catalog's cache, calls under way, the rest
)

// Answer is what that takes. Bytes are bytes, times are seconds.
type Answer struct {
	BytesPerToken int64 `json:"bytes_per_token"` // of KV, all layers (bytes)
	BytesPerBlock int64 `json:"bytes_per_block"` // of KV (bytes)

	// KV that computing makes: loading wins above it (bytes/s)
	ComputeBytesPerSecond float64 `json:"compute_bytes_per_second"`
	// what the drives give together, and of several nodes the network takes (bytes/s)
	LoadBytesPerSecond float64 `json:"load_bytes_per_second"`
	NetworkLimits      bool    `json:"network_limits"`  // the drives would give more than the network takes
	LoadingWins        bool    `json:"loading_wins"`    // loading gives more than computing makes
	ComputeSeconds     float64 `json:"compute_seconds"` // for one node to compute what is found of a prompt (s)
	LoadSeconds        float64 `json:"load_seconds"`    // to load it into one node, which nothing else loads (s)
	SavedSeconds       float64 `json:"saved_seconds"`   // of a prompt; below 0 loading loses (s)

	Blocks              float64 `json:"blocks"`                 // blocks kept at a time
	CapacityBytes       float64 `json:"capacity_bytes"`         // of all drives, copies and padding included (bytes)
	ReadBytesPerSecond  float64 `json:"read_bytes_per_second"`  // of what is found (bytes/s)
	WriteBytesPerSecond float64 `json:"write_bytes_per_second"` // copies and garbage collection included (bytes/s)

	Nodes int `json:"nodes"` // that all is spread over
	// that a node receives of the others: what is found, and copies (bytes/s)
	NetworkBytesPerSecond float64 `json:"network_bytes_per_second"`

	DrivesForCapacity int     `json:"drives_for_capacity"`  // drives that hold it all
	DrivesForReads    int     `json:"drives_for_reads"`     // drives that read fast enough
	DrivesForWear     int     `json:"drives_for_wear"`      // drives that last long enough
	DrivesNeeded      int     `json:"drives_needed"`        // the most of them, of copies and of nodes
	Drives            int     `json:"drives"`               // asked about, or needed
	DrivesOfNode      int     `json:"drives_of_node"`       // of them, at most
	WritesPerDay      float64 `json:"writes_per_day"`       // of all drives (bytes)
	DriveWritesPerDay float64 `json:"drive_writes_per_day"` // whole drives, of each
	// until the promised writes are used up; at most 100 (years)
	YearsOfLife    float64 `json:"years_of_life"`
	IndexBytes     float64 `json:"index_bytes"`     // memory of a node's index (bytes)
	CatalogBytes   float64 `json:"catalog_bytes"`   // a node's catalog's directory (bytes)
	MemoryBytes    float64 `json:"memory_bytes"`    // of a server, with its settings unchanged (bytes)
	ChecksumChunks int     `json:"checksum_chunks"` // of a block
	// the cap in the settings: at most what the drives have (bytes)
	SettingsCapacity   int64 `json:"settings_capacity_bytes"`
	SettingsBlockBytes int64 `json:"settings_block_bytes"` // of a block in the settings (bytes)
}

func (a *Ask) validate() error {
	const op = "size"
	for _, f := range []struct {
		name     string
		v        float64
		from, to float64
		limit    string
	}{
		{"--prompts", a.Prompts, 1e-6, 1e9, "0.000001 to 1e9"},
		{"--prompt-tokens", a.PromptTokens, 1, 1e9, "1 to 1e9"},
		{"--repeat", a.Repeat, 0, 1, "0 to 1"},
		{"--keep", a.Keep, 1, 1e10, "1s or more"},
		{"--prefill", a.Prefill, 1, 1e12, "1 or more"},
		{"--nodes", float64(a.Nodes), 1, 1024, "1 to 1024"},
		{"--network", a.Network, 1e6, 1e15, "1MB or more, a second"},
		{"--drives", float64(a.Drives), 0, 65536, "0 (as many as are needed) to 65536"},
		{"--drive-size", float64(a.DriveBytes), 1 << 30, 1 << 60, "1GiB or more"},
		{"--drive-read", a.DriveRead, 1e6, 1e15, "1MB or more, a second"},
		{"--drive-writes", a.DriveWrites, 1e-3, 1e3, "0.001 to 1000 whole drives a day"},
		{"--copies", float64(a.Copies), 1, 8, "1 to 8"},
	} {
		if !(f.v >= f.from && f.v <= f.to) {
			return skep.Invalidf(op, f.name, f.v, f.limit)
		}
	}
	return a.Shape.Validate()
}

// For answers a.
func For(a Ask) (*Answer, error) {
	if err := a.validate(); err != nil {
		return nil, err
	}
	g, err := layout.Of(a.Shape)
	if err != nil {
		return nil, err
	}
	chunks, err := layout.GranulesOf(a.Shape, skep.PartKV, g.PartBytes())
	if err != nil {
		return nil, err
	}
	r := &Answer{BytesPerToken: g.TokenBytes(), BytesPerBlock: g.PartBytes(), ChecksumChunks: chunks.N()}
	token := float64(r.BytesPerToken)
	found := a.PromptTokens * a.Repeat
	made := a.PromptTokens - found

	r.Blocks = a.Prompts * made * a.Keep / float64(a.Shape.BlockTokens)
	r.CapacityBytes = r.Blocks * float64(r.BytesPerBlock) * float64(a.Copies) * padding
	r.ReadBytesPerSecond = a.Prompts * found * token
	r.WriteBytesPerSecond = a.Prompts * made * token * float64(a.Copies) * collection
	r.WritesPerDay = r.WriteBytesPerSecond * 86400

	r.DrivesForCapacity = atLeastOne(r.CapacityBytes / float64(a.DriveBytes))
	r.DrivesForReads = atLeastOne(r.ReadBytesPerSecond / a.DriveRead)
	r.DrivesForWear = atLeastOne(r.WritesPerDay / (a.DriveWrites * float64(a.DriveBytes)))
	r.Nodes = a.Nodes
	r.DrivesNeeded = max(r.DrivesForCapacity, r.DrivesForReads, r.DrivesForWear, a.Copies)
	r.DrivesNeeded = (r.DrivesNeeded + a.Nodes - 1) / a.Nodes * a.Nodes
	if r.Drives = a.Drives; r.Drives == 0 {
		r.Drives = r.DrivesNeeded
	}
	if r.Drives < a.Nodes {
		return nil, skep.Invalidf("size", "--drives", r.Drives, fmt.Sprintf("at least --nodes, %d: each has one", a.Nodes))
	}
	r.DrivesOfNode = (r.Drives + a.Nodes - 1) / a.Nodes
	if r.Drives < a.Copies {
		return nil, skep.Invalidf("size", "--drives", r.Drives, fmt.Sprintf("at least --copies, %d: each copy of a block lies on another drive", a.Copies))
	}
	all := float64(r.Drives) * float64(a.DriveBytes)
	r.DriveWritesPerDay = r.WritesPerDay / all
	r.YearsOfLife = math.Inf(1)
	if r.WritesPerDay > 0 {
		r.YearsOfLife = Warranty * a.DriveWrites / r.DriveWritesPerDay
	}
	r.YearsOfLife = min(r.YearsOfLife, 100) // nothing is said of what lasts longer

	r.ComputeBytesPerSecond = token * a.Prefill
	r.LoadBytesPerSecond = float64(r.Drives) * a.DriveRead
	nodes := float64(a.Nodes)
	others := 1 - 1/nodes // the share of what a node needs that others have
	one := r.LoadBytesPerSecond
	if others > 0 {
		one = min(one, a.Network/others)
		r.NetworkLimits = r.LoadBytesPerSecond > nodes*a.Network/others
		r.LoadBytesPerSecond = min(r.LoadBytesPerSecond, nodes*a.Network/others)
	}
	r.NetworkBytesPerSecond = others * (r.ReadBytesPerSecond + r.WriteBytesPerSecond/collection) / nodes
	r.LoadingWins = r.LoadBytesPerSecond > r.ComputeBytesPerSecond
	r.ComputeSeconds = found / (a.Prefill / nodes)
	r.LoadSeconds = found * token / one
	r.SavedSeconds = r.ComputeSeconds - r.LoadSeconds

	kept := min(r.Blocks, all/padding/float64(a.Copies)/float64(r.BytesPerBlock)) // no more than the drives hold
	kept /= nodes
	r.IndexBytes = indexBytes * kept
	r.CatalogBytes = 2*kept*float64(recordBytes+chunkBytes*r.ChecksumChunks) + catalogSpare
	r.MemoryBytes = r.IndexBytes + dramBytes + ioBytes + otherBytes
	r.SettingsCapacity = int64(min(r.CapacityBytes/nodes, all/nodes))
	r.SettingsBlockBytes = r.BytesPerBlock
	return r, nil
}

func atLeastOne(n float64) int { return max(1, int(math.Ceil(min(n, 1e9)))) }
