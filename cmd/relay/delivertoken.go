package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/ledger/inbox"
)

func (p *process) deliverTokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token --recipient <type:id>",
		Short: "Sign a token with which a browser gets the notifications of a recipient",
		Long: `Sign a short-lived token with the first key of deliver.http.secret_file, for trying things out: it lets whoever has it read
and mark the recipient's notifications. An application signs its own, see docs/notifications.md.`,
		Args: noArguments,
	}
	flags := p.deliverFlags(cmd)
	recipient := cmd.Flags().String("recipient", "", "whose notifications, such as user:42")
	tenant := cmd.Flags().String("tenant", "", "whose events; empty where there are no tenants")
	ttl := cmd.Flags().Duration("ttl", 5*time.Minute, "how long it is good, 24h at most")
	cmd.RunE = func(*cobra.Command, []string) error {
		l := loadConfig(flags, p.environ)
		h := &l.config.Deliver.HTTP
		if h.SecretFile == "" {
			l.mistake("deliver.http.secret_file", "", "not set", "name the file with the keys that relay deliver checks tokens with")
		}
		if err := l.check("deliver"); err != nil {
			return err
		}
		switch {
		case *recipient == "":
			return &usageError{problem: "--recipient is not set", hint: "name whose notifications, such as user:42"}
		case *ttl < time.Second || *ttl > 24*time.Hour:
			return &usageError{problem: "--ttl is not between 1s and 24h", hint: "use a short time, such as 5m"}
		}
		keys, err := h.keys()
		if err != nil {
			return err
		}
		token, err := inbox.Sign(keys[0], inbox.Identity{Tenant: *tenant, Recipient: *recipient, Expires: time.Now().Add(*ttl)})
		if err != nil {
			return err
		}
		fmt.Fprintln(p.stdout, token)
		return nil
	}
	return cmd
}
