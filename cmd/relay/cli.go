package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/migrations"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1 // it was tried and did not work
	exitUsage  = 2 // it was not tried: the command line or the configuration is wrong
)

// process is what a command may touch of the world outside: everything a test replaces.
type process struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	environ        []string
	actions        actions
}

// actions are what the commands do once flags are read and the configuration is checked. A command without its
// action does not exist.
type actions struct {
	// run relays until it is told to stop. A nil error is a clean stop.
	run func(ctx context.Context, p *process, c *Config) error
	// demo shows a relay at work without anything installed.
	demo func(ctx context.Context, p *process, o *demoOptions) error
}

// run executes one command line and returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, environ []string) int {
	p := &process{stdin: stdin, stdout: stdout, stderr: stderr, environ: environ, actions: shipped()}
	return p.execute(ctx, args)
}

// shipped returns the actions of the released binary.
func shipped() actions {
	return actions{run: relay, demo: demoAction()}
}

func (p *process) execute(ctx context.Context, args []string) int {
	root := p.rootCommand()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err != nil {
		printError(p.stderr, err)
	}
	return exitCode(err)
}

func (p *process) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "relay",
		Short: "Publish committed outbox rows from PostgreSQL to Kafka",
		Long: `relay publishes the rows of a transactional outbox from PostgreSQL to Kafka: every committed event,
in commit order, and none from a transaction that was rolled back.

Each setting has one name with three spellings: postgres.slot in the file, RELAY_POSTGRES_SLOT in the
environment, --postgres-slot on the command line. A later one in this list wins. "relay config" shows
them all.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noUnknownCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(p.stdin)
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	root.SetFlagErrorFunc(flagError)
	root.CompletionOptions.HiddenDefaultCmd = true
	if p.actions.run != nil {
		root.AddCommand(p.runCommand())
	}
	if p.actions.demo != nil {
		root.AddCommand(p.demoCommand())
	}
	root.AddCommand(p.migrateCommand(), p.ledgerCommand(), p.deliverCommand(), p.recoverCommand(), p.replayCommand(), p.pruneCommand(), p.deadLettersCommand(), p.requestsCommand(), p.doctorCommand(), p.statusCommand(), p.configCommand(), p.versionCommand())
	return root
}

func (p *process) runCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Relay until told to stop",
		Long: `Relay until told to stop. The first SIGTERM or SIGINT lets records in flight finish within
drain_timeout; the second stops at once.`,
		Args: noArguments,
	}
	flags := addConfigFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		l := loadConfig(flags, p.environ)
		if err := l.check(); err != nil {
			return err
		}
		return p.actions.run(cmd.Context(), p, l.config)
	}
	return cmd
}

// usageError is a mistake on the command line.
type usageError struct {
	problem string
	hint    string
}

func (e *usageError) Error() string { return e.problem }

// Hint says what to do about it.
func (e *usageError) Hint() string { return e.hint }

// hintError adds what to do to an error.
type hintError struct {
	err  error
	hint string
}

func (e *hintError) Error() string { return e.err.Error() }
func (e *hintError) Unwrap() error { return e.err }

// Hint says what to do about it.
func (e *hintError) Hint() string { return e.hint }

// exitCode sorts an error into the exit codes.
func exitCode(err error) int {
	var usage *usageError
	var mistakes Mistakes
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage), errors.As(err, &mistakes):
		return exitUsage
	}
	return exitFailed
}

// printError tells a person what was seen and what to do: one line each.
func printError(w io.Writer, err error) {
	var mistakes Mistakes
	if errors.As(err, &mistakes) {
		for _, m := range mistakes {
			printProblem(w, m.Error(), m.Hint)
		}
		return
	}
	printProblem(w, errText(err), hintOf(err))
}

func printProblem(w io.Writer, problem, hint string) {
	oneLine := func(s string) string {
		return printable(strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), "; "))
	}
	fmt.Fprintf(w, "relay: %s\n", oneLine(problem))
	if hint != "" {
		fmt.Fprintf(w, "hint: %s\n", oneLine(hint))
	}
}

// hintOf finds the hint that an error carries.
func hintOf(err error) string {
	var hinter interface{ Hint() string }
	if errors.As(err, &hinter) {
		return hinter.Hint()
	}
	if e := state.Of(err); e != nil {
		return e.Hint
	}
	var m *migrations.Error
	if errors.As(err, &m) {
		return m.Hint
	}
	return ""
}

// flagError words what pflag found wrong, without repeating values.
func flagError(cmd *cobra.Command, err error) error {
	hint := fmt.Sprintf("%s --help lists the flags", cmd.CommandPath())
	var unknown *pflag.NotExistError
	var lacking *pflag.ValueRequiredError
	switch {
	case errors.As(err, &unknown):
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, "--"+f.Name) })
		name := unknown.GetSpecifiedName()
		for _, k := range defaultConfig().keys() {
			if k.entries != nil && flagName(k.name) == name {
				return errOnlyInFile
			}
		}
		return &usageError{
			problem: fmt.Sprintf("%s has no flag %s", cmd.Name(), word(name)),
			hint:    suggest(name, names, suggest("--"+name, names, hint)),
		}
	case errors.As(err, &lacking):
		return &usageError{problem: fmt.Sprintf("flag --%s lacks its value", lacking.GetSpecifiedName()), hint: hint}
	}
	return &usageError{problem: fmt.Sprintf("%s cannot read its flags", cmd.Name()), hint: hint}
}

// noArguments refuses arguments after a command that takes none.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return &usageError{
		problem: fmt.Sprintf("%s takes no argument, and got %s", cmd.Name(), word(args[0])),
		hint:    fmt.Sprintf("%s --help shows its use", cmd.CommandPath()),
	}
}

// noUnknownCommand refuses a word where a command was expected.
func noUnknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, cmd.CommandPath()+" "+c.Name())
		}
	}
	slices.Sort(names)
	return &usageError{
		problem: fmt.Sprintf("%s is not a command", word(args[0])),
		hint:    suggest(cmd.CommandPath()+" "+args[0], names, "the commands are "+strings.Join(names, ", ")),
	}
}

// word quotes what was given where something else was expected, unless it looks like more than a word: a
// connection string in the wrong place must not be repeated into a log.
func word(arg string) string {
	if len(arg) > 32 || strings.ContainsFunc(arg, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '-' && r != '_' }) {
		return "something else"
	}
	return strconv.Quote(arg)
}
