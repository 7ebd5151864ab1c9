package remote

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/internal/command"
)

// ReadyResult is what ready prints.
type ReadyResult struct {
	URL    string   `json:"url"`    // that was asked
	Unwell []string `json:"unwell"` // what is not well with a server that serves, in words
}

const (
	defaultHTTP  = "http://127.0.0.1:7422"
	readyTimeout = 5 * time.Second
	longestReady = 64 << 10 // bytes of an answer that are read
)

// readyCommand is for what watches a server and has no token: a container's health check, a script that starts it.
func readyCommand(a *command.App) *cobra.Command {
	var ca string
	timeout := readyTimeout
	cmd := &cobra.Command{
		Use: "ready [URL]", Short: "say whether a server serves, by its HTTP port and without a token",
		Long: `Asks the server's HTTP port, ` + defaultHTTP + ` unless URL names another, whether it serves. Exit code 0: it does, and
what is not well with it is printed; 4: it does not yet or not any more, or nobody answers. It takes no token.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			at := defaultHTTP
			if len(args) == 1 {
				at = args[0]
			}
			if timeout <= 0 {
				return skep.Invalidf("ready", "--timeout", timeout, "more than 0")
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			r, err := askReady(ctx, at, ca)
			if err != nil {
				if cmd.Context().Err() != nil {
					return cmd.Context().Err()
				}
				return err
			}
			return a.Print(r, func(w io.Writer) { readyText(w, r) })
		},
	}
	cmd.Flags().StringVar(&ca, "ca", "", "file with the certificates, PEM, of who signs the server's, for https ("+
		EnvCA+"; default: the system's)")
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "how long the answer may take")
	return cmd
}

func readyText(w io.Writer, r *ReadyResult) {
	at := strings.TrimSuffix(r.URL, "/readyz")
	if len(r.Unwell) == 0 {
		fmt.Fprintf(w, "The server at %s serves.\n", at)
		return
	}
	fmt.Fprintf(w, "The server at %s serves, and is not well:\n\n", at)
	rows := [][]string{}
	for _, line := range r.Unwell {
		rows = append(rows, command.Row("NOT WELL", line))
	}
	command.Table(w, rows...)
	fmt.Fprintln(w, "\nskep status says why.")
}

func askReady(ctx context.Context, at, ca string) (*ReadyResult, error) {
	u, err := url.Parse(at)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return nil, skep.Invalidf("ready", "URL", at, "http://HOST:PORT or https://HOST:PORT")
	}
	if ca == "" {
		ca = os.Getenv(EnvCA)
	}
	secure := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" && u.Scheme == "https" {
		b, err := readFile("--ca", ca)
		if err != nil {
			return nil, err
		}
		secure.RootCAs = x509.NewCertPool()
		if !secure.RootCAs.AppendCertsFromPEM(b) {
			return nil, skep.Invalidf("ready", "--ca", ca, "a file with certificates in PEM")
		}
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, u.JoinPath("readyz").String(), nil)
	if err != nil {
		return nil, skep.Invalidf("ready", "URL", at, "http://HOST:PORT or https://HOST:PORT")
	}
	// No proxy: the server that is asked about is the one that is named.
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{TLSClientConfig: secure, DisableKeepAlives: true}}
	not := func(limit string, err error) error {
		return command.WithNext(&skep.Error{Op: "ready", Kind: skep.Unavailable, Field: "server", Value: u.Host,
			Limit: limit, Err: err}, "see the server's log; skep status --wait ready waits for it")
	}
	answer, err := client.Do(q)
	if err != nil {
		return nil, not("one that answers over HTTP", err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, longestReady))
	if err != nil {
		return nil, not("one that answers over HTTP", err)
	}
	said := strings.TrimSpace(string(text))
	if answer.StatusCode != http.StatusOK {
		return nil, not(fmt.Sprintf("one that serves; it answers %s: %s", answer.Status, said), nil)
	}
	head, rest, _ := strings.Cut(said, "\n")
	if head != ready {
		return nil, skep.Invalidf("ready", "URL", at, "the HTTP port of a skep server")
	}
	r := &ReadyResult{URL: u.String(), Unwell: []string{}}
	if rest != "" {
		r.Unwell = strings.Split(rest, "\n")
	}
	return r, nil
}
