package serve

import (
	"time"

	"github.com/skepkv/skep/tools/internal/kvevents"
	"github.com/skepkv/skep/tools/internal/objectstore"
	"github.com/skepkv/skep/wire/auth"
)

// Config is everything skep serve can be told. The text behind each field is what
// skep config show prints over it.
type Config struct {
	Dir         string `yaml:"dir" path:"" flag:"dir" doc:"directory of the store; made when it is not there"`
	FileDevices int    `yaml:"file_devices" flag:"file-devices" doc:"how many devices, files in dir, a new store gets; 0: 4, or as it has"`
	Devices     Paths  `yaml:"devices" flag:"device" doc:"paths of devices, drives or files; empty: files in dir, or as it has"`

	Listen string `yaml:"listen" flag:"listen" doc:"HOST:PORT of the binary protocol; none: not over TCP"`
	Unix   string `yaml:"unix" path:"none" flag:"unix" doc:"path of the binary protocol's Unix socket, which shared memory needs; none: no socket; empty: skep.sock in dir"`
	RESP   string `yaml:"resp" flag:"resp" doc:"HOST:PORT of RESP, for everything that speaks Redis; none: no RESP"`
	HTTP   string `yaml:"http" flag:"http" doc:"HOST:PORT of the HTTP API, metrics and console; none: no HTTP"`

	Cluster string `yaml:"cluster" path:"" flag:"cluster" doc:"file with the map of a cluster, YAML or JSON, whose node this server is; empty: none, or dir is a node's (skep cluster init, add)"`
	Node    string `yaml:"node" flag:"node" doc:"name of the node that this server is, of those in cluster; where listen is the default, it listens at the node's address"`

	Join  JoinConfig  `yaml:"join" doc:"joining a cluster by itself; off while seeds is empty"`
	Peers PeersConfig `yaml:"peers" doc:"connections between the nodes of a cluster that agree on its map (skep cluster init)"`

	Store StoreConfig `yaml:"store" doc:"the store itself"`
	TLS   TLSConfig   `yaml:"tls" doc:"TLS 1.3 on the TCP ports; off while cert is empty"`

	Credentials []CredentialConfig      `yaml:"credentials" doc:"who may come in: see docs/howto/secure.md. Without any, only this machine's users may, as the tenant default"`
	Tenants     map[string]TenantConfig `yaml:"tenants" doc:"shares of the store and limits by tenant"`

	Limits Limits       `yaml:"limits" doc:"of the server as a whole"`
	Bucket BucketConfig `yaml:"bucket" doc:"object storage behind the drives; off while endpoint is empty: docs/howto/bucket.md"`
	Redis  RESPConfig   `yaml:"redis" doc:"how RESP behaves"`
	Events EventsConfig `yaml:"events" doc:"KV events in vLLM's form, without credentials: docs/howto/route.md"`
	Log    LogConfig    `yaml:"log" doc:"logging, to standard error"`
	Trace  Trace        `yaml:"trace" doc:"OpenTelemetry traces; off while endpoint is empty"`

	counted bool // devices was a number, as it was written before there was file_devices
}

// StoreConfig is the part of the configuration the store gets.
type StoreConfig struct {
	CapacityBytes     Size   `yaml:"capacity_bytes" flag:"capacity" doc:"cap on all devices together, of a new store; 0: as much as the file systems have, less 1GiB each, and the cap that a store has"`
	ChangeCapacity    bool   `yaml:"change_capacity" flag:"change-capacity" doc:"make capacity_bytes the cap of a store that has another one; a store never gets smaller"`
	CatalogDir        string `yaml:"catalog_dir" path:"" flag:"catalog-dir" doc:"directory of the catalog; empty: where dir remembers it, or catalog in dir"`
	BlockBytes        Size   `yaml:"block_bytes" doc:"typical size of a block, from which a new store derives its segments"`
	DRAMBytes         Size   `yaml:"dram_bytes" flag:"dram" doc:"DRAM tier"`
	IOBytes           Size   `yaml:"io_bytes" doc:"I/O buffers: what values and restores under way hold"`
	LeasedBytes       Size   `yaml:"leased_bytes" doc:"what one tenant may hold under lease; 0: a quarter of the capacity"`
	PinnedBytes       Size   `yaml:"pinned_bytes" doc:"what one tenant may pin; 0: half of leased_bytes"`
	TenantNamespaces  int    `yaml:"tenant_namespaces" doc:"how many namespaces one tenant may have; 0: 4096"`
	Policy            string `yaml:"policy" doc:"what is kept: cost, lru, s3fifo"`
	WriteBudget       Size   `yaml:"write_budget" flag:"write-budget" doc:"bytes a day that each device may be written, Durable puts aside; 0: any"`
	ScrubRate         Rate   `yaml:"scrub_rate" doc:"bytes a second of stored data that are read and verified, again and again; 0: never"`
	BackgroundRate    Rate   `yaml:"background_rate" doc:"bytes a second, at most, moved in the background; 0: what restores leave"`
	EncryptionKeyFile string `yaml:"encryption_key_file" path:"" doc:"keys of all tenants that have none of their own, 64 hexadecimal digits a line, the newest first; empty: their payload is not encrypted"`
	Backend           string `yaml:"backend" doc:"how devices are driven: auto, iouring, pool"`
}

// TLSConfig names the files of TLS. They are read again when they change.
type TLSConfig struct {
	Cert     string   `yaml:"cert" path:"" doc:"certificate chain, PEM"`
	Key      string   `yaml:"key" path:"" doc:"its private key, PEM"`
	ClientCA string   `yaml:"client_ca" path:"" doc:"certificates that sign client certificates, PEM; empty: certificates count only when pinned by hash"`
	Plain    []string `yaml:"plain" doc:"ports that stay without TLS: listen, resp, http, redis.lockstep"`
}

// PeersConfig is how nodes reach each other. Files are read again when they change.
type PeersConfig struct {
	Listen string `yaml:"listen" flag:"peer-listen" doc:"HOST:PORT where other nodes reach this one; empty: the peer address that it was founded or added with"`
	Cert   string `yaml:"cert" path:"" doc:"certificate chain, PEM, of this node: for servers and clients, with the host of its peer address; empty: no TLS, and loopback addresses only"`
	Key    string `yaml:"key" path:"" doc:"its private key, PEM"`
	CA     string `yaml:"ca" path:"" doc:"certificates that sign the nodes', PEM, and nobody else's: whoever has one of them may change the map"`

	TokenFile string `yaml:"token_file" path:"" doc:"file with the token that this node shows the others: of tenant '*', with rights read and write, and admin for FLUSHDB, FLUSHALL and deletions that overtake a repair; empty: none, while there are no credentials"`
	ServerCA  string `yaml:"server_ca" path:"" doc:"certificates that sign those of the nodes' binary ports, PEM; empty: the system's. TLS is spoken to them where this node's own has it"`

	RepairRate     Rate     `yaml:"repair_rate" doc:"bytes a second of copies that this node sends to others that lack them, while clients use either; 0: it sends none"`
	RepairIdleRate Rate     `yaml:"repair_idle_rate" doc:"while clients use neither; below repair_rate: as that"`
	RepairEvery    Duration `yaml:"repair_every" doc:"how often it looks for such copies, beside when map or nodes change; at least 1s"`
}

// CredentialConfig is one way in: exactly one of token_sha256, token_file, token_env,
// cert_sha256 and cert_name.
type CredentialConfig struct {
	Name        string    `yaml:"name"`
	Tenant      string    `yaml:"tenant"`
	Rights      []string  `yaml:"rights"` // read, write, admin
	TokenSHA256 string    `yaml:"token_sha256,omitempty"`
	TokenFile   string    `yaml:"token_file,omitempty" path:""`
	TokenEnv    string    `yaml:"token_env,omitempty"`
	CertSHA256  string    `yaml:"cert_sha256,omitempty"`
	CertName    string    `yaml:"cert_name,omitempty"`
	Expires     time.Time `yaml:"expires,omitempty"`
}

// TenantConfig is what one tenant may take. Zero does not limit.
type TenantConfig struct {
	Share             Size    `yaml:"share,omitempty"` // of what is stored, in bytes: over it, the tenant's blocks go first; nothing is refused
	Bytes             Size    `yaml:"bytes,omitempty"` // what share was called
	RequestsPerSecond float64 `yaml:"requests_per_second,omitempty"`
	BytesPerSecond    Rate    `yaml:"bytes_per_second,omitempty"`
	Connections       int     `yaml:"connections,omitempty"`
	// The tenant's payload is encrypted on the devices with the first key of this file, or of
	// this environment variable; at most one of them.
	EncryptionKeyFile string `yaml:"encryption_key_file,omitempty" path:""`
	EncryptionKeyEnv  string `yaml:"encryption_key_env,omitempty"`
}

func (t TenantConfig) limits() auth.Limits {
	return auth.Limits{RequestsPerSecond: t.RequestsPerSecond, BytesPerSecond: float64(t.BytesPerSecond), Connections: t.Connections}
}

// Limits bound the server, whoever calls.
type Limits struct {
	Connections int      `yaml:"connections" doc:"of each protocol"`
	Keys        int      `yaml:"keys" doc:"keys of one call of the binary protocol"`
	MemoryBytes Size     `yaml:"memory_bytes" doc:"held for calls under way, half by the binary protocol and half by RESP; at most store.io_bytes"`
	SharedBytes Size     `yaml:"shared_bytes" doc:"memory that clients on this machine share, engines' own too"`
	Drain       Duration `yaml:"drain" doc:"how long a stopping server waits for calls under way"`
	Op          Duration `yaml:"op" doc:"how long a RESP or HTTP call's part in the store may take"`
	IO          Duration `yaml:"io" doc:"how long a peer may take for one command, and for each MiB of a value"`
	Idle        Duration `yaml:"idle" doc:"how long a connection may ask nothing; 0: for ever with RESP, 5m with the binary protocol"`
}

// RESPConfig is how RESP behaves.
type RESPConfig struct {
	ExistsLease      Duration `yaml:"exists_lease" doc:"how long what EXISTS found stays; 0: no promise"`
	ExistsLeaseBytes Size     `yaml:"exists_lease_bytes" doc:"how much of it a tenant may have"`
	Lockstep         string   `yaml:"lockstep" doc:"HOST:PORT of RESP for clients that read replies of fixed lengths, as LMCache's native one does: SET, GET and EXISTS are never answered by an error; none: no such port"`
	Copies           int      `yaml:"copies" doc:"of each block, on as many devices; of databases made from now on"`
	Cluster          bool     `yaml:"cluster" doc:"a node of a cluster answers for all of it; false: for what it has itself"`
}

// BucketConfig is object storage behind the drives.
type BucketConfig = objectstore.Config

// EventsConfig is what routers are told, over ZeroMQ.
type EventsConfig struct {
	ZMQ         string   `yaml:"zmq" doc:"HOST:PORT that publishes KV events; :PORT: to this machine alone; none: off"`
	ZMQReplay   string   `yaml:"zmq_replay" doc:"HOST:PORT that sends missed ones again; :PORT: as above; none: off"`
	Topic       string   `yaml:"topic" doc:"what topics begin with: a namespace's is TOPIC@NODE@TENANT/NAMESPACE"`
	Node        string   `yaml:"node" doc:"whose they are, in topics; empty: the node's name in its cluster, or the machine's"`
	Namespaces  []string `yaml:"namespaces" doc:"TENANT/NAMESPACE to tell of; * at its end: all that begin so; unset: all"`
	Hashes      string   `yaml:"hashes" doc:"int: a key's last 64 bits, as is usual with vLLM; bytes: all of it"`
	Buffer      int      `yaml:"buffer" doc:"batches that are held for slow subscribers and for replays"`
	BufferBytes Size     `yaml:"buffer_bytes" doc:"how much of them; who is slower loses batches, and sees the gap"`
}

// LogConfig is what is logged, and how.
type LogConfig struct {
	Level  string `yaml:"level" doc:"debug, info, warn, error"`
	Format string `yaml:"format" doc:"text or json"`
}

// Trace is where traces go.
type Trace struct {
	Endpoint string  `yaml:"endpoint" doc:"URL of an OTLP/HTTP collector"`
	Ratio    float64 `yaml:"ratio" doc:"share of calls traced, 0 to 1"`
}

// Default is the configuration nobody has touched.
func Default() *Config {
	return &Config{
		Devices: Paths{},
		Listen:  "127.0.0.1:7420",
		RESP:    "127.0.0.1:7421",
		HTTP:    "127.0.0.1:7422",
		Store: StoreConfig{
			BlockBytes: 2 << 20, DRAMBytes: 256 << 20, IOBytes: 512 << 20, Policy: "cost", Backend: "auto",
		},
		Peers: PeersConfig{RepairRate: 64 << 20, RepairIdleRate: 1 << 30, RepairEvery: Duration(10 * time.Minute)},
		Limits: Limits{
			Connections: 10_000, Keys: 1 << 20, MemoryBytes: 384 << 20, SharedBytes: 4 << 30,
			Drain: Duration(30 * time.Second), Op: Duration(10 * time.Second), IO: Duration(30 * time.Second),
		},
		Join:   JoinConfig{Seeds: []string{}, Domain: []string{}, Weight: 1, Wait: Duration(30 * time.Second), Replicas: 1},
		Bucket: objectstore.Default(),
		Redis:  RESPConfig{Lockstep: None, ExistsLease: Duration(10 * time.Second), ExistsLeaseBytes: 256 << 20, Copies: 1, Cluster: true},
		Events: EventsConfig{
			ZMQ: None, ZMQReplay: None, Topic: kvevents.DefaultTopic, Namespaces: []string{"*"}, Hashes: hashesInt,
			Buffer: kvevents.DefaultBatches, BufferBytes: kvevents.DefaultRoom,
		},
		Log:   LogConfig{Level: "info", Format: "text"},
		Trace: Trace{Ratio: 0.01},
	}
}

// None is what turns a listener off.
const None = "none"
