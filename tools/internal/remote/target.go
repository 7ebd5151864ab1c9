package remote

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/seeds"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/secret"
	"github.com/skepkv/skep/wire"
)

// DefaultSocket is where a server that was installed as a service listens; DefaultAddress where else one is looked
// for.
const (
	DefaultSocket  = "/run/skep/skep.sock"
	DefaultAddress = "127.0.0.1:7420"
	defaultPort    = "7420"
)

// Environment variables that stand for flags which are not given.
const (
	EnvServer = "SKEP_SERVER"
	EnvToken  = "SKEP_TOKEN" // the token itself
	EnvCA     = "SKEP_CA"
)

// largestFile is how much of a file with a token or with certificates is read.
const largestFile = 1 << 20

// Target is a server as flags and the environment name it, or several nodes of a cluster, with commas between them, of
// which the first that answers is taken.
type Target struct {
	Server, TokenFile, CA string

	Flag   string              // that names the server; "--server" when empty
	Getenv func(string) string // os.Getenv when nil
	Err    io.Writer           // is warned of a token that anybody on the way can read; may be nil

	token  string
	secure *tls.Config
	addr   string // as package wire takes it
	listed bool   // it was one of several
}

// Register makes the flags.
func (t *Target) Register(fl *pflag.FlagSet) {
	fl.StringVar(&t.Server, "server", "", "server: unix:///PATH, skep://HOST:PORT, or skeps://HOST:PORT for TLS; or several nodes of a cluster, separated by commas (default: "+EnvServer+", else "+DefaultSocket+" where it is there, else "+DefaultAddress+")")
	t.RegisterToken(fl)
}

// RegisterToken makes those that say how a server is spoken to.
func (t *Target) RegisterToken(fl *pflag.FlagSet) {
	fl.StringVar(&t.TokenFile, "token-file", "", "file with the token; the environment's "+EnvToken+" is the token itself")
	fl.StringVar(&t.CA, "ca", "", "file with the certificates, PEM, of who signs the server's ("+EnvCA+"; default: the system's)")
}

// Named says whether flags or the environment name a server.
func (t *Target) Named() bool { return t.Server != "" || t.env(EnvServer) != "" }

// flag is that which names the server, for errors.
func (t *Target) flag() string {
	if t.Flag != "" {
		return t.Flag
	}
	return "--server"
}

func (t *Target) env(name string) string {
	if t.Getenv != nil {
		return t.Getenv(name)
	}
	return os.Getenv(name)
}

// String is the server as its user would name it.
func (t *Target) String() string { return t.Server }

// resolve reads flags, environment and files, and gives the servers that are named. Nothing is connected to.
func (t *Target) resolve() ([]Target, error) {
	if t.Server == "" {
		t.Server = t.env(EnvServer)
	}
	if t.Server == "" {
		t.Server = "skep://" + DefaultAddress
		if _, err := os.Stat(DefaultSocket); err == nil {
			t.Server = "unix://" + DefaultSocket
		}
	}
	if t.CA == "" {
		t.CA = t.env(EnvCA)
	}
	names, err := seeds.Addresses(op, t.flag(), t.Server)
	if err != nil {
		return nil, err
	}
	var all []Target
	secure := false
	for _, name := range names {
		one := *t
		one.Server, one.listed = name, len(names) > 1
		if err := one.parse(); err != nil {
			return nil, err
		}
		secure = secure || one.secure != nil
		all = append(all, one)
	}
	token := t.env(EnvToken)
	if t.TokenFile != "" {
		b, err := readFile("--token-file", t.TokenFile)
		if err != nil {
			return nil, err
		}
		if do := secret.Close(t.TokenFile); do != "" && t.Err != nil {
			fmt.Fprintf(t.Err, "warning: everybody on this machine may read the token in %s: %s\n", t.TokenFile, do)
		}
		if token = strings.TrimSpace(string(b)); token == "" {
			return nil, skep.Invalidf(op, "--token-file", t.TokenFile+", which is empty", "a file with a token")
		}
	}
	var roots *x509.CertPool
	if t.CA != "" && secure {
		b, err := readFile("--ca", t.CA)
		if err != nil {
			return nil, err
		}
		roots = x509.NewCertPool()
		if !roots.AppendCertsFromPEM(b) {
			return nil, skep.Invalidf(op, "--ca", t.CA, "a file with certificates in PEM")
		}
	}
	for i := range all {
		all[i].token = token
		if all[i].secure != nil {
			all[i].secure.RootCAs = roots
		}
	}
	return all, nil
}

const op = "connect"

const forms = "unix:///PATH without a comma, skep://HOST:PORT or skeps://HOST:PORT"

// parse makes an address of the server's name. HOST:PORT and unix:PATH will do, too: skep serve prints them.
func (t *Target) parse() error {
	bad := func(limit string) error { return skep.Invalidf(op, t.flag(), t.Server, limit) }
	if path, ok := strings.CutPrefix(t.Server, "unix:"); ok {
		path = strings.TrimPrefix(path, "//")
		if path == "" {
			return bad(forms)
		}
		t.addr = "unix:" + path
		return nil
	}
	text := t.Server
	if !strings.Contains(text, "://") {
		text = "skep://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || strings.Contains(u.Hostname(), ":") && !strings.HasPrefix(u.Host, "[") ||
		u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return bad(forms)
	}
	switch u.Scheme {
	case "skep":
	case "skeps":
		t.secure = &tls.Config{MinVersion: tls.VersionTLS13}
	case "http", "https", "redis", "rediss":
		return bad(forms + ": this command speaks the binary protocol, whose port is " + defaultPort + " by default")
	default:
		return bad(forms)
	}
	port := u.Port()
	if port == "" {
		port = defaultPort
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return bad(forms + ", with a PORT of 1 to 65535")
	}
	t.addr = net.JoinHostPort(u.Hostname(), port)
	return nil
}

// readFile reads a small file that a flag names.
func readFile(flag, path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, &skep.Error{Op: op, Kind: skep.Invalid, Field: flag, Value: path, Limit: "a file that can be read", Err: err}
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, largestFile+1))
	if err == nil && len(b) > largestFile {
		err = fmt.Errorf("it has over %d bytes", largestFile)
	}
	if err != nil {
		return nil, &skep.Error{Op: op, Kind: skep.Invalid, Field: flag, Value: path, Limit: "a file that can be read", Err: err}
	}
	return b, nil
}

// greeting is how long a server may take to say who it is; after suspicion it is asked whether it speaks something
// else.
const (
	greeting  = 10 * time.Second
	suspicion = time.Second
)

// nextAfter is how long a server may be silent before the next of several is tried beside it.
const nextAfter = time.Second

// Dial connects to the server, or to the first of several that answers, which is the Target from now on.
//
// Errors: Invalid (a flag, or what is at that address speaks something else), Unavailable (nobody is there), Denied.
func (t *Target) Dial(ctx context.Context, name string) (*wire.Client, error) {
	all, err := t.resolve()
	if err != nil {
		return nil, err
	}
	if len(all) == 1 {
		*t = all[0]
		t.warn()
		return t.dial(ctx, name)
	}
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		from Target
		c    *wire.Client
		err  error
	}
	answers := make(chan answer)
	begun, left := 0, 0
	begin := func() {
		one := all[begun]
		begun, left = begun+1, left+1
		one.warn()
		go func() {
			c, err := one.dial(within, name)
			answers <- answer{one, c, err}
		}()
	}
	var got *answer
	var errs []error
	for begin(); left > 0; {
		var silent <-chan time.Time
		if got == nil && begun < len(all) {
			silent = time.After(nextAfter)
		}
		select {
		case x := <-answers:
			left--
			switch {
			case got != nil:
				if x.c != nil {
					_ = x.c.Close()
				}
			case x.err == nil || skep.KindOf(x.err) != skep.Unavailable:
				got = &x
				cancel()
			default:
				errs = append(errs, x.err)
				if begun < len(all) {
					begin()
				}
			}
		case <-silent:
			begin()
		}
	}
	switch {
	case ctx.Err() != nil && (got == nil || got.c == nil):
		return nil, ctx.Err()
	case got == nil:
		err := &skep.Error{Op: op, Kind: skep.Unavailable, Field: t.flag(), Value: t.Server, Limit: "one that answers",
			Err: errs[0]}
		return nil, command.WithNext(err, "no server that is named answers; of the first: "+command.NextStep(errs[0]))
	}
	*t = got.from
	return got.c, got.err
}

// warn tells of a token that anybody on the way can read.
func (t *Target) warn() {
	if t.Err != nil && t.exposesToken() {
		fmt.Fprintf(t.Err, "warning: the token goes to %s unencrypted, and who reads it on the way can use it: "+
			"name the server skeps://, and have it speak TLS (tls.cert and tls.key of its settings)\n", t.Server)
	}
}

// warnOfNodes is warn for the first other node of the cluster that the token goes to unencrypted: nodes are dialled with
// it as the server that was named is, which may be on this machine.
func (t *Target) warnOfNodes(m *clustermap.Map) {
	if t.exposesToken() { // it was said
		return
	}
	for _, n := range m.Nodes {
		node := *t
		if node.addr, node.Server = n.Addr, "node "+n.Name+" at "+n.Addr; node.exposesToken() {
			node.warn()
			return
		}
	}
}

func (t *Target) dial(ctx context.Context, name string) (*wire.Client, error) {
	dialling, found := context.WithCancelCause(ctx)
	defer found(nil)
	asked := make(chan error, 1)
	go func() {
		select {
		case <-dialling.Done():
			asked <- nil
		case <-time.After(suspicion):
			err := t.otherProtocol(dialling)
			if err != nil {
				found(err)
			}
			asked <- err
		}
	}()
	c, err := wire.Dial(dialling, t.options(name))
	found(nil)
	other := <-asked
	if err == nil {
		return c, nil
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if other != nil {
		return nil, other
	}
	return nil, t.cause(ctx, err)
}

// options are those of a connection to the server, where it was found.
func (t *Target) options(name string) wire.Options {
	return wire.Options{Addr: t.addr, TLS: t.secure, Token: t.token, Name: name, Timeout: greeting, Strict: true}
}

// exposesToken says whether a token leaves this machine unencrypted.
func (t *Target) exposesToken() bool {
	if t.token == "" || t.secure != nil || strings.HasPrefix(t.addr, "unix:") {
		return false
	}
	host, _, _ := net.SplitHostPort(t.addr)
	ip := net.ParseIP(host)
	return host != "localhost" && (ip == nil || !ip.IsLoopback())
}

// cause is why there is no connection, and what to do, in the words of the flags.
func (t *Target) cause(ctx context.Context, err error) error {
	fail := func(kind skep.Kind, field, limit, next string) error {
		e := &skep.Error{Op: op, Kind: kind, Field: field, Value: t.Server, Err: err}
		if limit != "" {
			e.Limit = limit
		}
		return command.WithNext(e, next)
	}
	var unknown x509.UnknownAuthorityError
	var named x509.HostnameError
	var untrusted *tls.CertificateVerificationError
	var name *net.DNSError
	switch {
	case skep.KindOf(err) == skep.Denied:
		return t.Explain(err)
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, os.ErrNotExist):
		return fail(skep.Unavailable, t.flag(), "", "nobody listens there: start a server (skep serve --dir D), or name one that runs with "+t.flag()+" or "+EnvServer)
	case errors.Is(err, os.ErrPermission):
		return fail(skep.Denied, t.flag(), "", "the socket is for its server's own user, as long as the server has no credentials: run as that user")
	case errors.As(err, &name):
		return fail(skep.Unavailable, t.flag(), "", "no address is known of "+name.Name+": check the name in "+t.flag())
	case errors.As(err, &named):
		return fail(skep.Invalid, t.flag(), "a name that the server's certificate has", "the certificate is another name's: give that name in "+t.flag()+", or have the server get a certificate for this one")
	case errors.As(err, &unknown), errors.As(err, &untrusted):
		given := t.CA
		if given == "" {
			given = "not given"
		}
		return command.WithNext(&skep.Error{Op: op, Kind: skep.Invalid, Field: "--ca", Value: given, Limit: "the file with the certificate that signs the server's", Err: err},
			"copy that file from the server's machine (tls.cert there, where it signs itself), and name it with --ca or "+EnvCA)
	}
	if other := t.otherProtocol(ctx); other != nil {
		return other
	}
	return fail(skep.Unavailable, t.flag(), "", "the server does not answer: see its log, and try again; skep status --wait ready waits for it")
}

// otherProtocol says what else is spoken at the address; nil: nothing that is known.
func (t *Target) otherProtocol(ctx context.Context) error {
	if strings.HasPrefix(t.addr, "unix:") {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, greeting)
	defer cancel()
	wrong := func(what, limit, next string) error {
		return command.WithNext(skep.Invalidf(op, t.flag(), t.Server+", where "+what, limit), next)
	}
	switch said := t.say(ctx, t.secure); {
	case strings.HasPrefix(said, "HTTP"):
		return wrong("HTTP is spoken", "the address of the binary protocol", "that is the HTTP port (7422 by default): the binary protocol's is --listen of the server, "+defaultPort+" by default")
	case said != "" && strings.ContainsAny(said[:1], "-+$:*"):
		return wrong("Redis's protocol is spoken", "the address of the binary protocol", "that is the Redis port (7421 by default): the binary protocol's is --listen of the server, "+defaultPort+" by default")
	}
	if t.secure == nil {
		raw, err := t.raw(ctx, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}) // nothing is told it
		if err == nil {
			raw.Close()
			return wrong("TLS is spoken", "skeps://HOST:PORT", "write skeps:// in place of skep://, and name who signs the server's certificate with --ca")
		}
		return nil
	}
	if raw, err := t.raw(ctx, nil); err == nil {
		raw.Close()
		secured, err := t.raw(ctx, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}) // nor here
		var plain tls.RecordHeaderError
		switch {
		case err == nil:
			secured.Close()
		case errors.As(err, &plain), errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
			return wrong("no TLS is spoken", "skep://HOST:PORT", "write skep:// in place of skeps://: the server has no certificate (tls.cert of its settings), or this port is plain")
		}
	}
	return nil
}

// say asks in the words of HTTP, which the line protocol of Redis answers as well, and gives how the answer begins.
func (t *Target) say(ctx context.Context, secure *tls.Config) string {
	if secure != nil {
		secure = secure.Clone()
		secure.InsecureSkipVerify = true // it is told nothing
	}
	c, err := t.raw(ctx, secure)
	if err != nil {
		return ""
	}
	defer c.Close()
	if end, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(end)
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	if _, err := io.WriteString(c, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		return ""
	}
	b := make([]byte, 4)
	n, _ := io.ReadFull(c, b)
	return string(b[:n])
}

func (t *Target) raw(ctx context.Context, secure *tls.Config) (net.Conn, error) {
	if secure != nil {
		return (&tls.Dialer{Config: secure}).DialContext(ctx, "tcp", t.addr)
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", t.addr)
}

// lacksKey says whether what is denied is so for an encryption key.
func lacksKey(err error) bool {
	var e *skep.Error
	return errors.As(err, &e) && strings.HasPrefix(e.Field, "encryption key")
}

// Explain has an error of a call say what to do next, in the words of the flags. An error that says so is left alone.
func (t *Target) Explain(err error) error {
	if err == nil || command.HasNext(err) {
		return err
	}
	next := ""
	switch skep.KindOf(err) {
	case skep.Denied:
		switch {
		case lacksKey(err):
			next = "a node has no encryption key of the tenant, which others encrypt: skep cluster status names it"
		case t.token == "":
			next = "the server wants a token: name a file that has one with --token-file, or set " + EnvToken
		case t.TokenFile != "":
			next = "the token in " + t.TokenFile + " is not one of the server's, has run out, or lacks the right for this: see credentials in the server's settings"
		default:
			next = "the token in " + EnvToken + " is not one of the server's, has run out, or lacks the right for this: see credentials in the server's settings"
		}
	case skep.Full:
		next = "the server's store is full of what may not go: skep del or skep purge make room, a lease ends by itself, skep status shows the space; a larger --capacity --change-capacity at the server's start gives more"
	case skep.Quota:
		next = "the tenant has all that it may: delete something (skep del, skep ns delete), or raise its limits in the server's settings"
	case skep.Overloaded, skep.NoMemory:
		next = "the server has too much to do: give the same command again"
	case skep.Unavailable:
		var e *skep.Error
		if errors.As(err, &e) && e.Field == "node" {
			next = "skep cluster status says which nodes answer; what only that node has is back when it is"
			break
		}
		next = "the server went away, or answered too late: skep status --wait ready waits for it, then give the same command again"
	case skep.Unsupported:
		next = "the server cannot do that: it is older than this command, or a node of a cluster"
	default:
		return err
	}
	return command.WithNext(err, next)
}
