package serve

import (
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/wire/auth"
)

func problem(field string, value, limit any) error {
	return skep.Invalidf("settings", field, value, limit)
}

// MostFileDevices is how many devices a store may have.
const MostFileDevices = 64

// problems lists what is wrong with c, by field.
func (c *Config) problems() []error {
	var wrong []error
	bad := func(is bool, field string, value, limit any) {
		if is {
			wrong = append(wrong, problem(field, value, limit))
		}
	}
	bad(c.Dir == "", "dir", "empty", "a directory")
	bad(c.FileDevices < 0 || c.FileDevices > MostFileDevices, "file_devices", c.FileDevices,
		fmt.Sprintf("1 to %d, or 0 for those there are", MostFileDevices))
	bad(c.FileDevices > 0 && len(c.Devices) > 0, "file_devices and devices", "both", "one of them")
	one := slices.Contains([]bool{c.Listen != None, c.Unix != None, c.RESP != None, c.HTTP != None}, true)
	bad(!one, "listen, unix, resp and http", "all none", "at least one")
	wrong = append(wrong, c.checkSocket("unix, path")...)
	for _, l := range c.ports() {
		wrong = append(wrong, c.checkPort(l.name, l.addr)...)
	}
	bad(c.Store.Policy != "cost" && c.Store.Policy != "lru" && c.Store.Policy != "s3fifo", "store.policy", c.Store.Policy, "cost, lru or s3fifo")
	bad(c.Store.WriteBudget > 0 && c.Store.DRAMBytes == 0, "store.dram_bytes with store.write_budget", c.Store.DRAMBytes, "more than 0: blocks wait in the DRAM tier")
	bad(c.Store.Backend != device.Auto && c.Store.Backend != device.IOUring && c.Store.Backend != device.Pool, "store.backend", c.Store.Backend, "auto, iouring or pool")
	bad(c.Store.IOBytes < leastIOBytes, "store.io_bytes", c.Store.IOBytes, "at least 64MiB")
	bad(c.Store.BlockBytes < 1 || c.Store.BlockBytes > skep.MaxPartBytes, "store.block_bytes", c.Store.BlockBytes, "1 to 512MiB")
	bad(c.Limits.Connections < 1 || c.Limits.Connections > 1<<24, "limits.connections", c.Limits.Connections, "1 to 16777216")
	bad(c.Limits.Keys < 1 || c.Limits.Keys > skep.MaxChainKeys, "limits.keys", c.Limits.Keys, fmt.Sprintf("1 to %d", skep.MaxChainKeys))
	bad(c.Limits.SharedBytes < 1<<20, "limits.shared_bytes", c.Limits.SharedBytes, "1MiB or more")
	bad(c.Limits.MemoryBytes < leastMemoryBytes || c.Limits.MemoryBytes > c.Store.IOBytes, "limits.memory_bytes", c.Limits.MemoryBytes, fmt.Sprintf("56MiB to store.io_bytes, %v", c.Store.IOBytes))
	for _, d := range []struct {
		field string
		v     Duration
	}{{"limits.drain", c.Limits.Drain}, {"limits.op", c.Limits.Op}, {"limits.io", c.Limits.IO}} {
		bad(d.v <= 0, d.field, d.v, "more than 0")
	}
	bad(c.Redis.ExistsLease > Duration(skep.MaxLease), "redis.exists_lease", c.Redis.ExistsLease, skep.MaxLease)
	bad(c.Redis.Copies < 1 || c.Redis.Copies > skep.MaxCopies, "redis.copies", c.Redis.Copies, fmt.Sprintf("1 to %d", skep.MaxCopies))
	var level slog.Level
	bad(level.UnmarshalText([]byte(c.Log.Level)) != nil, "log.level", c.Log.Level, "debug, info, warn or error")
	bad(c.Log.Format != "text" && c.Log.Format != "json", "log.format", c.Log.Format, "text or json")
	if c.Trace.Endpoint != "" {
		u, err := url.Parse(c.Trace.Endpoint)
		bad(err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "", "trace.endpoint", c.Trace.Endpoint, "an http or https URL")
	}
	bad(!(c.Trace.Ratio >= 0 && c.Trace.Ratio <= 1), "trace.ratio", c.Trace.Ratio, "0 to 1")
	wrong = append(wrong, c.checkTLS()...)
	wrong = append(wrong, c.checkPeers()...)
	wrong = append(wrong, c.checkJoin()...)
	wrong = append(wrong, c.checkGateway()...)
	wrong = append(wrong, c.checkTenants()...)
	wrong = append(wrong, c.checkEvents()...)
	wrong = append(wrong, c.Bucket.Check()...)
	_, sealed := c.encryptionKeys(os.LookupEnv)
	wrong = append(wrong, sealed...)
	_, more := c.credentials(os.LookupEnv)
	return append(wrong, more...)
}

// port is one TCP listener.
type port struct{ name, addr string }

// ports lists the TCP listeners that are on.
func (c *Config) ports() []port {
	all := []port{{"listen", c.Listen}, {"resp", c.RESP}, {"redis.lockstep", c.Redis.Lockstep}, {"http", c.HTTP}}
	return slices.DeleteFunc(all, func(p port) bool { return p.addr == None })
}

func (c *Config) checkSocket(field string) []error {
	path := c.socket()
	if len(path) <= store.MaxSocketPath || c.Unix == "" && len(c.ports()) > 0 {
		return nil
	}
	return []error{problem(field, fmt.Sprintf("%q, %d bytes", path, len(path)),
		fmt.Sprintf("at most %d bytes, as the system has it, or none", store.MaxSocketPath))}
}

func (c *Config) checkPort(name, addr string) []error {
	host, p, err := net.SplitHostPort(addr)
	if err != nil {
		return []error{problem(name, strconv.Quote(addr), "HOST:PORT, or none")}
	}
	if n, err := strconv.Atoi(p); err != nil || n < 0 || n > 65535 {
		return []error{problem(name+", port", strconv.Quote(p), "0 to 65535")}
	}
	if len(c.Credentials) == 0 && !loopback(host) {
		return []error{problem(name, addr, "a loopback address (127.0.0.1, ::1, localhost) while there are no credentials")}
	}
	return nil
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

func (c *Config) checkTLS() (wrong []error) {
	t := &c.TLS
	if (t.Cert == "") != (t.Key == "") {
		wrong = append(wrong, problem("tls.cert and tls.key", "one of them", "both or neither"))
	}
	if t.ClientCA != "" && t.Cert == "" {
		wrong = append(wrong, problem("tls.client_ca", "set", "empty while tls.cert is"))
	}
	plain, known := []string{"listen", "resp", "http", "redis.lockstep"}, "listen, resp, http or redis.lockstep"
	if len(t.Plain) > len(plain) {
		return append(wrong, problem("tls.plain", fmt.Sprintf("%d ports", len(t.Plain)), known+", each once"))
	}
	for _, p := range t.Plain {
		if !slices.Contains(plain, p) {
			wrong = append(wrong, problem("tls.plain", p, known))
		}
	}
	if t.Cert != "" && t.Key != "" {
		if _, err := loadCertificate(t); err != nil {
			wrong = append(wrong, &skep.Error{Op: "settings", Kind: skep.Invalid, Field: "tls", Err: err})
		}
	}
	return wrong
}

func (c *Config) checkTenants() (wrong []error) {
	for name, t := range c.Tenants {
		if name == "" || len(name) > skep.MaxNameSize {
			wrong = append(wrong, problem("tenants, name", strconv.Quote(name), fmt.Sprintf("1 to %d bytes", skep.MaxNameSize)))
		}
		if !(t.RequestsPerSecond >= 0) || t.Connections < 0 {
			wrong = append(wrong, problem("tenants."+name, "negative", "0 or more"))
		}
		if t.Share > 0 && t.Bytes > 0 {
			wrong = append(wrong, problem("tenants."+name+", share and bytes", "both set", "share alone: bytes is its old name"))
		}
	}
	return wrong
}

// maxTokenBytes is the longest token file.
const maxTokenBytes = 4 << 10

// credentials makes the directory's credentials, reading tokens from where c says.
func (c *Config) credentials(environ func(string) (string, bool)) (out []auth.Credential, wrong []error) {
	if len(c.Credentials) > maxKeys {
		return nil, []error{problem("credentials", len(c.Credentials), fmt.Sprintf("at most %d", maxKeys))}
	}
	names := map[string]bool{}
	for i, cc := range c.Credentials {
		at := fmt.Sprintf("credentials[%d]", i)
		if cc.Name == "" || names[cc.Name] {
			wrong = append(wrong, problem(at+".name", strconv.Quote(cc.Name), "a name no other credential has"))
		}
		names[cc.Name] = true
		cred := auth.Credential{Name: cc.Name, Tenant: cc.Tenant, CertName: cc.CertName, Expires: cc.Expires.UTC()}
		var err error
		if cred.Rights, err = auth.ParseRights(cc.Rights); err != nil || cred.Rights == 0 {
			wrong = append(wrong, problem(at+".rights", fmt.Sprint(cc.Rights), "some of read, write, admin"))
		}
		if cc.Tenant == "" || len(cc.Tenant) > skep.MaxNameSize {
			wrong = append(wrong, problem(at+".tenant", strconv.Quote(cc.Tenant), fmt.Sprintf("1 to %d bytes", skep.MaxNameSize)))
		}
		ways := 0
		for _, w := range []string{cc.TokenSHA256, cc.TokenFile, cc.TokenEnv, cc.CertSHA256, cc.CertName} {
			if w != "" {
				ways++
			}
		}
		if ways != 1 {
			wrong = append(wrong, problem(at, fmt.Sprintf("%d ways in", ways), "exactly one of token_sha256, token_file, token_env, cert_sha256, cert_name"))
			continue
		}
		if err := cc.secret(&cred, environ); err != nil {
			wrong = append(wrong, &skep.Error{Op: "settings", Kind: skep.Invalid, Field: at, Err: err})
			continue
		}
		out = append(out, cred)
	}
	return out, append(wrong, unique(out)...)
}

// secret fills in what the credential is known by. The token itself goes no further.
func (cc *CredentialConfig) secret(cred *auth.Credential, environ func(string) (string, bool)) (err error) {
	switch {
	case cc.TokenSHA256 != "":
		cred.TokenSHA256, err = auth.ParseSHA256(cc.TokenSHA256)
	case cc.CertSHA256 != "":
		cred.CertSHA256, err = auth.ParseSHA256(cc.CertSHA256)
	case cc.TokenFile != "":
		b, ferr := readFile(cc.TokenFile, maxTokenBytes)
		if ferr != nil {
			return ferr
		}
		cred.TokenSHA256, err = auth.TokenHash(strings.TrimSpace(string(b)))
	case cc.TokenEnv != "":
		token, ok := environ(cc.TokenEnv)
		if !ok {
			return problem("token_env", cc.TokenEnv+", which is not set", "a variable that is set")
		}
		cred.TokenSHA256, err = auth.TokenHash(token)
	}
	return err
}

// limits are the tenants' rates.
func (c *Config) limits() map[string]auth.Limits {
	out := map[string]auth.Limits{}
	for name, t := range c.Tenants {
		out[name] = t.limits()
	}
	return out
}

// socket is the Unix socket's path, "" for none.
func (c *Config) socket() string {
	switch {
	case c.Unix == None || runtime.GOOS == "windows" && c.Unix == "":
		return ""
	case c.Unix == "":
		return filepath.Join(c.Dir, "skep.sock")
	}
	return c.Unix
}
