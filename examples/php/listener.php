<?php
// Notifies the subscribers of a post that was published: in the database, then by mail.
//
//     relay run --sink-type stdout | php listener.php
//
// Every line is a record as the relay prints it. DATABASE_DSN is PDO's name of the consumer's database with the ledger
// in it (pgsql:host=...;dbname=...;user=...;password=...), MAIL_URL the mail provider's API.
declare(strict_types=1);

require __DIR__ . '/Keys.php';
require __DIR__ . '/Ledger.php';
require __DIR__ . '/NotifySubscribers.php';

$db = new PDO(getenv('DATABASE_DSN'), options: [PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION]);
$listener = new NotifySubscribers($db, new Ledger($db), getenv('MAIL_URL'));
while (($line = fgets(STDIN)) !== false) {
    ['headers' => $headers, 'value' => $value] = json_decode($line, true, flags: JSON_THROW_ON_ERROR);
    if ($headers['event_type'] === 'PostPublished') {
        $event = new PostPublished($value['post'], $value['title'], $value['subscribers'], $headers['occurred_at']);
        foreach ($listener->handle($event) as $words) {
            echo implode(' ', $words), "\n";
        }
    }
}
