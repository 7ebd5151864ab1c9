package serve

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// reloadInterval is how often files are looked at, and reloadAgain how soon they are read once more when some could not
// be: nothing may change of one that may be opened again.
const (
	reloadInterval = 2 * time.Second
	reloadAgain    = time.Minute
)

// follow reads certificates, credentials, limits and the cluster's map again when their files change or
// when asked to, until ctx ends. What cannot be read leaves in use what is.
func (s *server) follow(ctx context.Context) {
	tick := time.NewTicker(reloadInterval)
	defer tick.Stop()
	c, seen := s.c, s.seen
	var again <-chan time.Time // nil: all could be read
	for {
		asked, due := false, false
		select {
		case <-ctx.Done():
			return
		case at := <-tick.C:
			if s.others != nil {
				s.others.part(at)
			}
		case <-again:
			due = true
		case <-s.o.Again:
			asked = true
		}
		if !asked && !due && fingerprint(c) == seen {
			continue
		}
		if asked {
			s.tell(daemon.SdNotifyReloading + "\n" + daemon.SdNotifyMonotonicUsec())
		}
		var all bool
		if c, seen, all = s.reload(c, asked); all {
			again = nil
		} else {
			again = time.After(reloadAgain)
		}
		if asked {
			s.tell(daemon.SdNotifyReady)
		}
	}
}

// reload gives the configuration that is in use now, with the fingerprint its files had before they
// were read: what changes meanwhile is noticed. It says whether all files could be read.
func (s *server) reload(c *Config, asked bool) (_ *Config, before string, all bool) {
	next, read := c, true
	if asked && s.o.Reload != nil {
		var err error
		if next, err = s.o.Reload(); err == nil && len(next.Credentials) == 0 && !s.dir.Open() {
			err = errors.New("it has no credentials, and a server that has some does not go on without")
		}
		if err != nil {
			s.log.Error("configuration not reloaded: the one in use stays, and the files that it names are read again",
				"error", err)
			next, read = c, false
		}
	}
	asks := next
	next = next.keeping(c)
	before = fingerprint(next)
	creds, wrong := next.credentials(os.LookupEnv)
	if len(wrong) == 0 {
		if err := s.dir.Replace(creds, next.limits()); err != nil {
			wrong = append(wrong, err)
		}
	}
	for _, err := range wrong {
		s.log.Error("credentials not reloaded", "error", err)
	}
	certified := true
	if next.TLS.Cert != "" {
		if err := s.cert.load(&next.TLS, s.log); err != nil {
			s.log.Error("certificate not reloaded", "error", err)
			certified = false
		}
	}
	if err := s.peers.load(&next.Peers); err != nil {
		s.log.Error("certificate between nodes not reloaded", "error", err)
		certified = false
	}
	all = len(wrong) == 0 && certified
	if s.whole != nil {
		shows := *next
		shows.TLS = s.c.TLS // as this node's own port speaks
		if err := s.show(&shows); err != nil {
			s.log.Error("what this node shows the others not reloaded: it goes on with what it has", "error", err)
			all = false
		}
	}
	all = s.replaceKeys(next) && all
	s.tellOpenFiles(next)
	s.setShares(next)
	s.tellDoubts(next, s.capacity)
	all = s.replaceMap(next) && all
	if fixed := s.c.fixed(asks, s.whole != nil); len(fixed) > 0 {
		s.log.Warn("not reloaded: these settings need a restart; what was set at the start stays in use", "settings", strings.Join(fixed, ", "))
	}
	switch {
	case len(wrong) > 0:
		s.log.Warn("reloaded but for credentials and limits: those in use stay", "problems", len(wrong))
	case !certified:
		s.log.Warn("reloaded but for the certificate: the one in use stays", "credentials", len(creds))
	case !read:
		s.log.Warn("reloaded but for the configuration: the one in use stays", "credentials", len(creds))
	default:
		s.log.Info("reloaded", "credentials", len(creds), "tenants", len(next.Tenants))
	}
	return next, before, all
}

// reloaded are the settings that a running server takes anew; credentials and tenants besides.
var reloaded = []string{"tls.cert", "tls.key", "tls.client_ca", "store.encryption_key_file", "peers.cert", "peers.key", "peers.ca"}

// shown are those that it takes anew where it speaks to other nodes.
var shown = []string{"peers.token_file", "peers.server_ca"}

// keeping is c with the certificates of before where it takes TLS away or has it come: that needs a restart, and until
// then it is the ones in use that are read again.
func (c *Config) keeping(before *Config) *Config {
	x := *c
	if (c.TLS.Cert == "") != (before.TLS.Cert == "") {
		x.TLS = before.TLS
	}
	if p := &before.Peers; (c.Peers.Cert == "") != (p.Cert == "") {
		x.Peers.Cert, x.Peers.Key, x.Peers.CA = p.Cert, p.Key, p.CA
	}
	return &x
}

// fixed lists what differs in next and stays as it is in c, of a server that speaks to other nodes or to none.
func (c *Config) fixed(next *Config, speaks bool) (out []string) {
	now, then := fields(c), fields(next)
	for i, f := range now {
		if slices.Contains(reloaded, f.path) && (c.TLS.Cert == "") == (next.TLS.Cert == "") &&
			(c.Peers.Cert == "") == (next.Peers.Cert == "") {
			continue
		}
		if slices.Contains(shown, f.path) && speaks {
			continue
		}
		if was, is := fmt.Sprint(f.v.Interface()), fmt.Sprint(then[i].v.Interface()); was != is {
			out = append(out, f.path)
		}
	}
	return out
}

// fingerprint changes when a file with a certificate, a token, a key or the cluster's map does.
func fingerprint(c *Config) string {
	paths := []string{c.TLS.Cert, c.TLS.Key, c.TLS.ClientCA, c.Peers.Cert, c.Peers.Key, c.Peers.CA, c.Peers.TokenFile,
		c.Peers.ServerCA}
	for _, cc := range c.Credentials {
		paths = append(paths, cc.TokenFile)
	}
	paths = append(paths, c.Store.EncryptionKeyFile, c.Cluster)
	for _, name := range slices.Sorted(maps.Keys(c.Tenants)) {
		paths = append(paths, c.Tenants[name].EncryptionKeyFile)
	}
	all := sha256.New()
	for _, p := range paths {
		if p == "" {
			continue
		}
		if fi, err := os.Stat(p); err == nil {
			fmt.Fprint(all, fi.ModTime(), fi.Size()) // a file half written may have the time of the whole one
			if fi.Mode().IsRegular() {               // and another one of its length; what is a pipe is read once
				hashOf(all, p)
			}
		}
		all.Write([]byte{';'})
	}
	return string(all.Sum(nil))
}

// largestWatched is how much of a file is looked at for a change that its time and size do not show.
const largestWatched = 1 << 20

// hashOf adds what a file holds. One that cannot be read is like an empty one.
func hashOf(all io.Writer, path string) {
	f, err := openFile(path)
	if err != nil {
		return
	}
	defer f.Close()
	_, _ = io.Copy(all, io.LimitReader(f, largestWatched))
}
