package serve

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// reloadInterval is how often files are looked at.
const reloadInterval = 2 * time.Second

// follow reads certificates, credentials and limits again when their files change or
// when asked to, until ctx ends. What cannot be read leaves in use what is.
func (s *server) follow(ctx context.Context) {
	tick := time.NewTicker(reloadInterval)
	defer tick.Stop()
	c := s.c
	seen := fingerprint(c)
	for {
		asked := false
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-s.o.Again:
			asked = true
		}
		now := fingerprint(c)
		if now == seen && !asked {
			continue
		}
		seen = now
		if next := s.reload(c, asked); next != nil {
			c = next
			seen = fingerprint(c)
		}
	}
}

// reload gives the configuration that is in use now, nil when it is the old one.
func (s *server) reload(c *Config, asked bool) *Config {
	next := c
	if asked && s.o.Reload != nil {
		var err error
		if next, err = s.o.Reload(); err != nil {
			s.log.Error("configuration not reloaded", "error", err)
			return nil
		}
	}
	creds, wrong := next.credentials(os.LookupEnv)
	for _, err := range wrong {
		s.log.Error("credentials not reloaded", "error", err)
	}
	if len(next.Credentials) == 0 && len(c.Credentials) > 0 {
		s.log.Error("credentials not reloaded: a server that has them does not go on without")
		return nil
	}
	if len(wrong) == 0 {
		if err := s.dir.Replace(creds, next.limits()); err != nil {
			s.log.Error("credentials not reloaded", "error", err)
			return nil
		}
	}
	if next.TLS.Cert != "" && s.c.TLS.Cert != "" {
		if err := s.cert.load(&next.TLS); err != nil {
			s.log.Error("certificate not reloaded", "error", err)
			return nil
		}
	}
	s.replaceKeys(next)
	s.setQuotas(next)
	if len(wrong) > 0 {
		s.log.Warn("reloaded but for credentials and limits: those in use stay", "problems", len(wrong))
		return next
	}
	s.log.Info("reloaded", "credentials", len(creds), "tenants", len(next.Tenants))
	return next
}

// fingerprint changes when a file with a certificate or a token does.
func fingerprint(c *Config) string {
	paths := []string{c.TLS.Cert, c.TLS.Key, c.TLS.ClientCA}
	for _, cc := range c.Credentials {
		paths = append(paths, cc.TokenFile)
	}
	paths = append(paths, c.Store.EncryptionKeyFile)
	for _, name := range slices.Sorted(maps.Keys(c.Tenants)) {
		paths = append(paths, c.Tenants[name].EncryptionKeyFile)
	}
	var b strings.Builder
	for _, p := range paths {
		if p == "" {
			continue
		}
		if fi, err := os.Stat(p); err == nil {
			fmt.Fprint(&b, fi.ModTime(), fi.Size()) // a file half written may have the time of the whole one
		}
		b.WriteByte(';')
	}
	return b.String()
}
