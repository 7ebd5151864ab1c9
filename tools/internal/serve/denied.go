package serve

import (
	"bytes"
	"fmt"
	"log"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/skepkv/skep/wire/auth"
)

// tellDenied says in the log who is not let in: once a minute of each protocol and reason, with how many there were.
func (s *server) tellDenied() {
	seldom := map[[2]string]*rate.Sometimes{}
	for _, p := range auth.Protocols {
		for _, r := range auth.Reasons {
			seldom[[2]string{p, r}] = &rate.Sometimes{First: 1, Interval: time.Minute}
		}
	}
	s.dir.OnDenied(func(d auth.Denial) {
		if one := seldom[[2]string{d.Protocol, d.Reason}]; one != nil {
			one.Do(func() {
				s.log.Warn("somebody was not let in: said once a minute",
					"protocol", d.Protocol, "reason", d.Reason, "credential", d.Name,
					"address", fmt.Sprint(d.Peer), "so_far", s.dir.Denied(d.Protocol, d.Reason))
			})
		}
	})
}

// deniedMetrics shows who was not let in, and when credentials run out.
type deniedMetrics struct{ dir *auth.Directory }

var (
	descDenied = prometheus.NewDesc("skep_denied_total",
		"Who was not let in: credentials missing, wrong, expired.", []string{"protocol", "reason"}, nil)
	descCredential = prometheus.NewDesc("skep_credential_expires_seconds",
		"When a credential runs out, in seconds since 1970.", []string{"name"}, nil)
)

// Describe implements prometheus.Collector.
func (deniedMetrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (m deniedMetrics) Collect(out chan<- prometheus.Metric) {
	for _, p := range auth.Protocols {
		for _, r := range auth.Reasons {
			out <- prometheus.MustNewConstMetric(descDenied, prometheus.CounterValue, float64(m.dir.Denied(p, r)), p, r)
		}
	}
	for name, at := range m.dir.Expiries() {
		out <- prometheus.MustNewConstMetric(descCredential, prometheus.GaugeValue, float64(at.Unix()), name)
	}
}

// webLog is the log of the HTTP server, which tells nobody else that a client's certificate was refused.
func (s *server) webLog() *log.Logger {
	to := slog.NewLogLogger(s.log.With("part", "http").Handler(), slog.LevelDebug)
	return log.New(webErrors{s.dir, to}, "", 0)
}

type webErrors struct {
	dir *auth.Directory
	to  *log.Logger
}

// Write takes one line.
func (w webErrors) Write(line []byte) (int, error) {
	const handshake, refused = "http: TLS handshake error from ", ": tls: failed to verify certificate: "
	if rest, ok := bytes.CutPrefix(line, []byte(handshake)); ok {
		if at, why, ok := bytes.Cut(rest, []byte(refused)); ok {
			reason := auth.Wrong
			if bytes.Contains(why, []byte("expired or is not yet valid")) {
				reason = auth.Expired
			}
			w.dir.Deny(auth.Denial{Protocol: "http", Reason: reason, Peer: webPeer(at)})
		}
	}
	return len(line), w.to.Output(2, string(bytes.TrimSpace(line)))
}

// webPeer is an address as the HTTP server writes it.
type webPeer string

var _ net.Addr = webPeer("")

func (webPeer) Network() string  { return "tcp" }
func (p webPeer) String() string { return string(p) }
