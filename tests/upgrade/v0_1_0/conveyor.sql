BEGIN TRANSACTION;
CREATE TABLE api_key (
    id      TEXT    NOT NULL PRIMARY KEY,
    version INTEGER NOT NULL,
    doc     TEXT    NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "api_key" VALUES('01M7KZVVSWA75A61ZRAZMD1BZF',2,'{"id":"01M7KZVVSWA75A61ZRAZMD1BZF","caller":"01M7KZVVSWA75A61ZRAZMD1BZF","digest":"CkodgvqAvvWLNR3tkxRrDRWmYyyLO7MdV1AXUUo7dd8=","created_at":"2026-11-17T05:32:21.180168Z","name":"","scopes":["read","write"],"expires_at":null,"revoked_at":null,"last_used_at":"2026-11-17T05:32:42.298785Z","sealed_gateway_key":null,"version":2}');
INSERT INTO "api_key" VALUES('01M7KZW1SC3YKHQCVDAJ42Z4W6',2,'{"id":"01M7KZW1SC3YKHQCVDAJ42Z4W6","caller":"01M7KZW1SC3YKHQCVDAJ42Z4W6","digest":"hpp/9Hkcza+TfG4HrVlKbZVGZ4zxfdmto4qDwYEKFZg=","created_at":"2026-11-17T05:32:27.308519Z","name":"","scopes":["read","write"],"expires_at":null,"revoked_at":"2026-11-17T05:32:37.363097Z","last_used_at":null,"sealed_gateway_key":null,"version":2}');
CREATE TABLE attempt (
    shelf      INTEGER NOT NULL,
    idx        INTEGER NOT NULL,
    claim_no   INTEGER NOT NULL,  -- a claim ends once, so it has one line at most
    attempt    INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    ended_at   INTEGER NOT NULL,
    problem    TEXT,
    credits    INTEGER NOT NULL,
    nanos      INTEGER NOT NULL,
    PRIMARY KEY (shelf, idx, claim_no)
) STRICT, WITHOUT ROWID;
INSERT INTO "attempt" VALUES(1,0,1,1,1794893559047463,1794893559231567,NULL,1,100000);
INSERT INTO "attempt" VALUES(1,1,1,1,1794893559047463,1794893559246536,NULL,1,100000);
INSERT INTO "attempt" VALUES(1,2,1,1,1794893559047463,1794893559246536,NULL,1,100000);
INSERT INTO "attempt" VALUES(1,3,1,1,1794893559047463,1794893559246536,NULL,1,100000);
INSERT INTO "attempt" VALUES(1,4,1,1,1794893559047463,1794893559246536,NULL,1,100000);
INSERT INTO "attempt" VALUES(1,5,1,1,1794893559047463,1794893559246536,'{"code":"RESP002","detail":"Page not found. This is the mock gateway speaking.","instance":"/v1","status":404,"title":"Page not found (RESP002)","type":"https://docs.zenrows.com/api-error-codes#RESP002","gateway_request_id":"mock-7"}',0,0);
INSERT INTO "attempt" VALUES(1,6,1,1,1794893559047463,1794893559246536,'{"code":"RESP001","detail":"Could not get content. This is the mock gateway speaking.","instance":"/v1","status":422,"title":"Could not get content (RESP001)","type":"https://docs.zenrows.com/api-error-codes#RESP001","gateway_request_id":"mock-8"}',0,0);
INSERT INTO "attempt" VALUES(1,6,2,2,1794893559444425,1794893559450921,NULL,1,100000);
INSERT INTO "attempt" VALUES(2,5,1,1,1794893559803289,1794893559806145,'{"code":"RESP002","detail":"Page not found. This is the mock gateway speaking.","instance":"/v1","status":404,"title":"Page not found (RESP002)","type":"https://docs.zenrows.com/api-error-codes#RESP002","gateway_request_id":"mock-10"}',0,0);
INSERT INTO "attempt" VALUES(3,0,1,1,1794893559907306,1794893559922335,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,0,1,1,1794893561492801,1794893561505154,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,1,1,1,1794893561492801,1794893561505154,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,2,1,1,1794893561492801,1794893561505154,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,3,1,1,1794893561492801,1794893561505154,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,4,1,1,1794893561492801,1794893561505154,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,5,1,1,1794893561492801,1794893561505154,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,6,1,1,1794893561492801,1794893561505154,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,7,1,1,1794893561492801,1794893561506172,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,8,1,1,1794893561492801,1794893561506172,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,9,1,1,1794893561492801,1794893561506172,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,10,1,1,1794893561492801,1794893561506172,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,11,1,1,1794893561492801,1794893561506172,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,12,1,1,1794893561492801,1794893561506172,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,13,1,1,1794893561492801,1794893561506172,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,14,1,1,1794893561492801,1794893561506172,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,15,1,1,1794893561492801,1794893561506172,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,16,1,1,1794893561492801,1794893561506172,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,17,1,1,1794893561492801,1794893561506172,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,18,1,1,1794893561492801,1794893561506172,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,19,1,1,1794893561492801,1794893561506172,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,20,1,1,1794893561492801,1794893561506172,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,21,1,1,1794893561492801,1794893561506172,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,22,1,1,1794893561492801,1794893561506172,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,23,1,1,1794893561492801,1794893561506172,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,24,1,1,1794893561492801,1794893561506172,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,25,1,1,1794893561492801,1794893561506172,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,26,1,1,1794893561492801,1794893561506172,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,27,1,1,1794893561492801,1794893561506172,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,28,1,1,1794893561492801,1794893561506172,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,29,1,1,1794893561492801,1794893561506172,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,30,1,1,1794893561492801,1794893561506172,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,31,1,1,1794893561492801,1794893561506172,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,32,1,1,1794893561492801,1794893561506172,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,33,1,1,1794893561492801,1794893561506172,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,34,1,1,1794893561492801,1794893561506172,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,35,1,1,1794893561492801,1794893561506172,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,36,1,1,1794893561492801,1794893561506172,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,37,1,1,1794893561492801,1794893561506172,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,38,1,1,1794893561492801,1794893561506390,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,39,1,1,1794893561492801,1794893561506390,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,40,1,1,1794893561492801,1794893561506390,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,41,1,1,1794893561492801,1794893561506390,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,42,1,1,1794893561492801,1794893561506390,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,43,1,1,1794893561492801,1794893561506390,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,44,1,1,1794893561492801,1794893561506390,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,45,1,1,1794893561492801,1794893561506390,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,46,1,1,1794893561492801,1794893561506390,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,47,1,1,1794893561492801,1794893561506390,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,48,1,1,1794893561492801,1794893561506390,NULL,1,100000);
INSERT INTO "attempt" VALUES(4,49,1,1,1794893561492801,1794893561506390,NULL,1,100000);
INSERT INTO "attempt" VALUES(5,0,1,1,1794893561527433,1794893561528953,NULL,1,100000);
INSERT INTO "attempt" VALUES(6,0,1,1,1794893561718766,1794893562157206,NULL,1,100000);
INSERT INTO "attempt" VALUES(6,1,1,1,1794893562138430,1794893562552548,NULL,1,100000);
INSERT INTO "attempt" VALUES(7,0,1,1,1794893563891886,1794893564391664,NULL,1,100000);
INSERT INTO "attempt" VALUES(7,1,1,1,1794893564453054,1794893564806401,NULL,1,100000);
INSERT INTO "attempt" VALUES(9,0,1,1,1794893566690363,1794893567235757,NULL,1,100000);
INSERT INTO "attempt" VALUES(9,1,1,1,1794893566690363,1794893567235757,NULL,1,100000);
INSERT INTO "attempt" VALUES(9,2,1,1,1794893567220957,1794893567761758,NULL,1,100000);
INSERT INTO "attempt" VALUES(9,3,1,1,1794893567220957,1794893567761758,NULL,1,100000);
INSERT INTO "attempt" VALUES(9,4,1,1,1794893567751407,1794893568311616,NULL,1,100000);
INSERT INTO "attempt" VALUES(9,5,1,1,1794893567751407,1794893568311616,NULL,1,100000);
CREATE TABLE batch (
    run_id  TEXT    NOT NULL,
    first   INTEGER NOT NULL,
    version INTEGER NOT NULL,
    doc     TEXT    NOT NULL,
    PRIMARY KEY (run_id, first)
) STRICT, WITHOUT ROWID;
CREATE TABLE counter (
    shelf         INTEGER NOT NULL,
    incarnation   INTEGER NOT NULL,
    successful    INTEGER NOT NULL,
    auth_failed   INTEGER NOT NULL,
    blocked       INTEGER NOT NULL,
    bad_target    INTEGER NOT NULL,
    rate_limited  INTEGER NOT NULL,
    timeout       INTEGER NOT NULL,
    gateway_error INTEGER NOT NULL,
    other         INTEGER NOT NULL,
    credits       INTEGER NOT NULL,
    nanos         INTEGER NOT NULL,
    PRIMARY KEY (shelf, incarnation)
) STRICT, WITHOUT ROWID;
INSERT INTO "counter" VALUES(1,2,6,0,0,1,0,0,0,0,6,600000);
INSERT INTO "counter" VALUES(2,2,0,0,0,1,0,0,0,0,0,0);
INSERT INTO "counter" VALUES(3,2,1,0,0,0,0,0,0,0,1,100000);
INSERT INTO "counter" VALUES(4,2,50,0,0,0,0,0,0,0,50,5000000);
INSERT INTO "counter" VALUES(5,2,1,0,0,0,0,0,0,0,1,100000);
INSERT INTO "counter" VALUES(6,2,2,0,0,0,0,0,0,0,2,200000);
INSERT INTO "counter" VALUES(7,2,2,0,0,0,0,0,0,0,2,200000);
INSERT INTO "counter" VALUES(9,2,6,0,0,0,0,0,0,0,6,600000);
CREATE TABLE duty (
    id         TEXT    NOT NULL PRIMARY KEY,
    kind       TEXT    NOT NULL,
    about      TEXT    NOT NULL,
    due_at     INTEGER,  -- when it may be received; null once buried
    deliveries INTEGER NOT NULL DEFAULT 0,
    reason     TEXT,
    buried_at  INTEGER
) STRICT, WITHOUT ROWID;
CREATE TABLE event (
    id      TEXT    NOT NULL PRIMARY KEY,
    job_id  TEXT    NOT NULL,
    channel TEXT    NOT NULL,
    due_at  INTEGER,  -- null once it is not owed any more
    version INTEGER NOT NULL,
    doc     TEXT    NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "event" VALUES('01M7KZWDMVDQE4AR6KBHWKDFD5','01M7KZWD713KAD2ECA8JCBP34F','webhook',NULL,3,'{"id":"01M7KZWDMVDQE4AR6KBHWKDFD5","caller":"01M7KZVVSWA75A61ZRAZMD1BZF","job_id":"01M7KZWD713KAD2ECA8JCBP34F","run_id":"01M7KZWD713KAD2ECA8MC9PVVC","channel":"webhook","type":"run.completed","occurred_at":"2026-11-17T05:32:39.451764Z","payload":"{\"schema\":\"conveyor.event.v1\",\"event_id\":\"01M7KZWDMVDQE4AR6KBHWKDFD5\",\"event_type\":\"run.completed\",\"occurred_at\":\"2026-11-17T05:32:39.451764Z\",\"job_id\":\"01M7KZWD713KAD2ECA8JCBP34F\",\"run_id\":\"01M7KZWD713KAD2ECA8MC9PVVC\",\"run_sequence\":1,\"stats\":{\"total\":7,\"completed\":7,\"successful\":6,\"failed\":1,\"spend\":{\"credits\":6,\"cost\":0.0006},\"failure_reasons\":{\"bad_target\":1}}}","due_at":null,"sealed_token":"","every_seconds":0,"status":"delivered","tries":0,"deliveries":[{"attempt":1,"started_at":"2026-11-17T05:32:39.478927Z","elapsed_ms":8,"status_code":200,"error":null}],"version":3}');
INSERT INTO "event" VALUES('01M7KZWE121TGZNBPHWYFXQKNA','01M7KZWD713KAD2ECA8JCBP34F','webhook',NULL,3,'{"id":"01M7KZWE121TGZNBPHWYFXQKNA","caller":"01M7KZVVSWA75A61ZRAZMD1BZF","job_id":"01M7KZWD713KAD2ECA8JCBP34F","run_id":"01M7KZWDZC4TY3HMQ05ZQ1424N","channel":"webhook","type":"run.completed","occurred_at":"2026-11-17T05:32:39.842722Z","payload":"{\"schema\":\"conveyor.event.v1\",\"event_id\":\"01M7KZWE121TGZNBPHWYFXQKNA\",\"event_type\":\"run.completed\",\"occurred_at\":\"2026-11-17T05:32:39.842722Z\",\"job_id\":\"01M7KZWD713KAD2ECA8JCBP34F\",\"run_id\":\"01M7KZWDZC4TY3HMQ05ZQ1424N\",\"run_sequence\":2,\"stats\":{\"total\":7,\"completed\":7,\"successful\":6,\"failed\":1,\"spend\":{\"credits\":0,\"cost\":0.0},\"failure_reasons\":{\"bad_target\":1}}}","due_at":null,"sealed_token":"","every_seconds":0,"status":"delivered","tries":0,"deliveries":[{"attempt":1,"started_at":"2026-11-17T05:32:39.846265Z","elapsed_ms":6,"status_code":200,"error":null}],"version":3}');
INSERT INTO "event" VALUES('01M7KZWE4QBDC3XVRZ0F3RJ66D','01M7KZWE1H3MXC8EYK7E3NE1K5','webhook',1794893848994274,5,'{"id":"01M7KZWE4QBDC3XVRZ0F3RJ66D","caller":"01M7KZVVSWA75A61ZRAZMD1BZF","job_id":"01M7KZWE1H3MXC8EYK7E3NE1K5","run_id":"01M7KZWE1H3MXC8EYK7E7WK5JF","channel":"webhook","type":"run.completed","occurred_at":"2026-11-17T05:32:39.959585Z","payload":"{\"schema\":\"conveyor.event.v1\",\"event_id\":\"01M7KZWE4QBDC3XVRZ0F3RJ66D\",\"event_type\":\"run.completed\",\"occurred_at\":\"2026-11-17T05:32:39.959585Z\",\"job_id\":\"01M7KZWE1H3MXC8EYK7E3NE1K5\",\"run_id\":\"01M7KZWE1H3MXC8EYK7E7WK5JF\",\"run_sequence\":1,\"stats\":{\"total\":1,\"completed\":1,\"successful\":1,\"failed\":0,\"spend\":{\"credits\":1,\"cost\":0.0001}}}","due_at":"2026-11-17T05:37:28.994274Z","sealed_token":"","every_seconds":0,"status":"owed","tries":2,"deliveries":[{"attempt":1,"started_at":"2026-11-17T05:32:40.030581Z","elapsed_ms":48,"status_code":500,"error":"http_5xx:500"},{"attempt":2,"started_at":"2026-11-17T05:32:46.079075Z","elapsed_ms":16,"status_code":500,"error":"http_5xx:500"}],"version":5}');
CREATE TABLE export (
    id      TEXT    NOT NULL PRIMARY KEY,
    version INTEGER NOT NULL,
    doc     TEXT    NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "export" VALUES('01M7KZWDPJ6ARMRK0P0WCSXM2P',3,'{"id":"01M7KZWDPJ6ARMRK0P0WCSXM2P","job_id":"01M7KZWD713KAD2ECA8JCBP34F","run_id":"01M7KZWD713KAD2ECA8MC9PVVC","caller":"01M7KZVVSWA75A61ZRAZMD1BZF","created_at":"2026-11-17T05:32:39.502765Z","sent_at":"2026-11-17T05:32:39.502765Z","status":"completed","claim_no":1,"length":6034,"error":null,"version":3}');
CREATE TABLE file_input (
    id      TEXT    NOT NULL PRIMARY KEY,
    version INTEGER NOT NULL,
    doc     TEXT    NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "file_input" VALUES('01M7KZWF8G91VFJXFT2FZCGQX4',3,'{"id":"01M7KZWF8G91VFJXFT2FZCGQX4","caller":"01M7KZVVSWA75A61ZRAZMD1BZF","spec":{"kind":"txt","delimiter":",","quote":"\"","header":false,"url":0,"external_id":null},"created_at":"2026-11-17T05:32:41.104228Z","blob":"inputs/01M7KZWF8G91VFJXFT2FZCGQX4/01M7KZWFEG5T916ZP586VNDAWZ","length":1350,"encodings":[],"jobs":["01M7KZWFFK311F73TZQY3W333V"],"version":3}');
INSERT INTO "file_input" VALUES('01M7KZWFNH37QJRNB401SH5MQT',1,'{"id":"01M7KZWFNH37QJRNB401SH5MQT","caller":"01M7KZVVSWA75A61ZRAZMD1BZF","spec":{"kind":"txt","delimiter":",","quote":"\"","header":false,"url":0,"external_id":null},"created_at":"2026-11-17T05:32:41.521720Z","blob":null,"length":0,"encodings":[],"jobs":[],"version":1}');
CREATE TABLE incarnation (
    no         INTEGER PRIMARY KEY,  -- one for each time the folder was opened
    started_at INTEGER NOT NULL
) STRICT;
INSERT INTO "incarnation" VALUES(1,1794893535807506);
INSERT INTO "incarnation" VALUES(2,1794893553454606);
CREATE TABLE job (
    id      TEXT    NOT NULL PRIMARY KEY,
    caller  TEXT    NOT NULL,
    type    TEXT    NOT NULL,
    status  TEXT    NOT NULL,
    run_id  TEXT    NOT NULL,  -- the latest run
    version INTEGER NOT NULL,
    doc     TEXT    NOT NULL
, fires_at INTEGER) STRICT, WITHOUT ROWID;
INSERT INTO "job" VALUES('01M7KZWD713KAD2ECA8JCBP34F','01M7KZVVSWA75A61ZRAZMD1BZF','regular','closed','01M7KZWDZC4TY3HMQ05ZQ1424N',2,'{"id":"01M7KZWD713KAD2ECA8JCBP34F","caller":"01M7KZVVSWA75A61ZRAZMD1BZF","status":"closed","format":"html","latest_run_id":"01M7KZWDZC4TY3HMQ05ZQ1424N","sealed_key":"ApYUhzs5xTr6rIFz2vLKwHyY4WwH5059H06ebreZGOyd2Tc15GLWxIlRAq1Ep+OdThNSUXrKJPpI2mt2UPmQHA==","created_at":"2026-11-17T05:32:39.009853Z","updated_at":"2026-11-17T05:32:39.792387Z","type":"regular","params":null,"name":null,"external_id":null,"metadata":null,"max_inflight":100,"max_per_host":null,"retries":3,"result_ttl_days":14,"runs":2,"pinned":null,"webhook":{"url":"https://127.0.0.1:28892/ended","signature":true,"disabled_at":null},"schedule":null,"schedule_state":"active","next_fire_at":null,"skipped":0,"last_skipped_at":null,"last_batch":false,"version":2}',NULL);
INSERT INTO "job" VALUES('01M7KZWE1H3MXC8EYK7E3NE1K5','01M7KZVVSWA75A61ZRAZMD1BZF','regular','closed','01M7KZWE1H3MXC8EYK7E7WK5JF',1,'{"id":"01M7KZWE1H3MXC8EYK7E3NE1K5","caller":"01M7KZVVSWA75A61ZRAZMD1BZF","status":"closed","format":"html","latest_run_id":"01M7KZWE1H3MXC8EYK7E7WK5JF","sealed_key":"ApYUhzs5xTr6mgyUMn/IEmH4hAZJli4/iHBThIEyJnG/gO1PzZnNtzhixnT+fbIMzEP79p9I0urswV0bL8tvzA==","created_at":"2026-11-17T05:32:39.857991Z","updated_at":"2026-11-17T05:32:39.857991Z","type":"regular","params":null,"name":null,"external_id":null,"metadata":null,"max_inflight":100,"max_per_host":null,"retries":3,"result_ttl_days":14,"runs":1,"pinned":null,"webhook":{"url":"https://127.0.0.1:28892/refuse","signature":true,"disabled_at":null},"schedule":null,"schedule_state":"active","next_fire_at":null,"skipped":0,"last_skipped_at":null,"last_batch":false,"version":1}',NULL);
INSERT INTO "job" VALUES('01M7KZWF7F60B6QP2HHWGZ0FR0','01M7KZVVSWA75A61ZRAZMD1BZF','scheduled','closed','',1,'{"id":"01M7KZWF7F60B6QP2HHWGZ0FR0","caller":"01M7KZVVSWA75A61ZRAZMD1BZF","status":"closed","format":"html","latest_run_id":null,"sealed_key":"ApYUhzs5xTr6g2HPQsfN/d98qNhU0d+dJRuK6i2VN4Lgn2XUaZ3fMN7yxsuXiCV/IzvMkKFG34uAgPMTyMU73Q==","created_at":"2026-11-17T05:32:41.071234Z","updated_at":"2026-11-17T05:32:41.071234Z","type":"scheduled","params":null,"name":null,"external_id":null,"metadata":null,"max_inflight":100,"max_per_host":null,"retries":3,"result_ttl_days":14,"runs":0,"pinned":{"blob":"pins/01M7KZWF7F60B6QP2HHWGZ0FR0.ndjson","count":1},"webhook":null,"schedule":{"rate":{"every":1,"unit":"hour"}},"schedule_state":"active","next_fire_at":"2026-11-17T06:32:41.071234Z","skipped":0,"last_skipped_at":null,"last_batch":false,"version":1}',1794897161071234);
INSERT INTO "job" VALUES('01M7KZWFFK311F73TZQY3W333V','01M7KZVVSWA75A61ZRAZMD1BZF','regular','closed','01M7KZWFFK311F73TZR093S05X',1,'{"id":"01M7KZWFFK311F73TZQY3W333V","caller":"01M7KZVVSWA75A61ZRAZMD1BZF","status":"closed","format":"html","latest_run_id":"01M7KZWFFK311F73TZR093S05X","sealed_key":"ApYUhzs5xTr6HI2XCmZPioVAjYPSkjH14pdWXZj53uhHC7IjWNflqBs95MDteZwVux+8DbDTpb39aELxf3f21A==","created_at":"2026-11-17T05:32:41.331395Z","updated_at":"2026-11-17T05:32:41.331395Z","type":"regular","params":null,"name":null,"external_id":null,"metadata":null,"max_inflight":100,"max_per_host":null,"retries":3,"result_ttl_days":14,"runs":1,"pinned":{"blob":"inputs/01M7KZWF8G91VFJXFT2FZCGQX4/01M7KZWFEG5T916ZP586VNDAWZ","spec":{"kind":"txt","delimiter":",","quote":"\"","header":false,"url":0,"external_id":null},"input_id":"01M7KZWF8G91VFJXFT2FZCGQX4"},"webhook":null,"schedule":null,"schedule_state":"active","next_fire_at":null,"skipped":0,"last_skipped_at":null,"last_batch":false,"version":1}',NULL);
INSERT INTO "job" VALUES('01M7KZWFNM80NKWJYJ34PDZSZQ','01M7KZVVSWA75A61ZRAZMD1BZF','regular','open','01M7KZWFNM80NKWJYJ35DN18QC',1,'{"id":"01M7KZWFNM80NKWJYJ34PDZSZQ","caller":"01M7KZVVSWA75A61ZRAZMD1BZF","status":"open","format":"html","latest_run_id":"01M7KZWFNM80NKWJYJ35DN18QC","sealed_key":"ApYUhzs5xTr6DxbmTezd67TKwzfm9MjxdhZ/DsLOwmCQqRDOa3kC7/unrd5wxhcd+aMkISTB0Sd57ZDb41Hn2g==","created_at":"2026-11-17T05:32:41.524240Z","updated_at":"2026-11-17T05:32:41.524240Z","type":"regular","params":null,"name":null,"external_id":null,"metadata":null,"max_inflight":100,"max_per_host":null,"retries":3,"result_ttl_days":14,"runs":1,"pinned":null,"webhook":null,"schedule":null,"schedule_state":"active","next_fire_at":null,"skipped":0,"last_skipped_at":null,"last_batch":false,"version":1}',NULL);
INSERT INTO "job" VALUES('01M7KZWFPMC1WSCZXESWEJ3V0H','01M7KZVVSWA75A61ZRAZMD1BZF','regular','closed','01M7KZWFPMC1WSCZXESWV904PX',1,'{"id":"01M7KZWFPMC1WSCZXESWEJ3V0H","caller":"01M7KZVVSWA75A61ZRAZMD1BZF","status":"closed","format":"html","latest_run_id":"01M7KZWFPMC1WSCZXESWV904PX","sealed_key":"ApYUhzs5xTr62PEuZ8J2q0z3SW3lTlSEmLP1Gg61biHgV8BwBv0oKUf3ahKvZdt6pEjGlvjX7amkSVZ6C9dWQQ==","created_at":"2026-11-17T05:32:41.556314Z","updated_at":"2026-11-17T05:32:41.556314Z","type":"regular","params":null,"name":null,"external_id":null,"metadata":null,"max_inflight":1,"max_per_host":null,"retries":3,"result_ttl_days":14,"runs":1,"pinned":null,"webhook":null,"schedule":null,"schedule_state":"active","next_fire_at":null,"skipped":0,"last_skipped_at":null,"last_batch":false,"version":1}',NULL);
INSERT INTO "job" VALUES('01M7KZWHX73PABAF6TKS4C49F9','01M7KZVVSWA75A61ZRAZMD1BZF','regular','closed','01M7KZWHX73PABAF6TKTJMSVWB',1,'{"id":"01M7KZWHX73PABAF6TKS4C49F9","caller":"01M7KZVVSWA75A61ZRAZMD1BZF","status":"closed","format":"html","latest_run_id":"01M7KZWHX73PABAF6TKTJMSVWB","sealed_key":"ApYUhzs5xTr6Chynnb3xmdrpBxkvNBvhLFfF5TXm3ytOyU6aSRTM1YygFDpN4E7NVj3/gV5omcK8xFdDBn799A==","created_at":"2026-11-17T05:32:43.815225Z","updated_at":"2026-11-17T05:32:43.815225Z","type":"regular","params":null,"name":null,"external_id":null,"metadata":null,"max_inflight":1,"max_per_host":null,"retries":3,"result_ttl_days":14,"runs":1,"pinned":null,"webhook":null,"schedule":null,"schedule_state":"active","next_fire_at":null,"skipped":0,"last_skipped_at":null,"last_batch":false,"version":1}',NULL);
INSERT INTO "job" VALUES('01M7KZWKKZDNY1Q0KZTCTQQS5V','01M7KZVVSWA75A61ZRAZMD1BZF','regular','deleted','',3,'{"id":"01M7KZWKKZDNY1Q0KZTCTQQS5V","caller":"01M7KZVVSWA75A61ZRAZMD1BZF","status":"deleted","format":"","latest_run_id":null,"sealed_key":"","created_at":"2026-11-17T05:32:45.567489Z","updated_at":"2026-11-17T05:32:45.636521Z","type":"regular","params":null,"name":null,"external_id":null,"metadata":null,"max_inflight":100,"max_per_host":null,"retries":3,"result_ttl_days":14,"runs":1,"pinned":null,"webhook":null,"schedule":null,"schedule_state":"active","next_fire_at":null,"skipped":0,"last_skipped_at":null,"last_batch":false,"version":3}',NULL);
INSERT INTO "job" VALUES('01M7KZWMP9BHEPG1R851B2N5AS','01M7KZVVSWA75A61ZRAZMD1BZF','regular','closed','01M7KZWMP9BHEPG1R852E9BEVV',1,'{"id":"01M7KZWMP9BHEPG1R851B2N5AS","caller":"01M7KZVVSWA75A61ZRAZMD1BZF","status":"closed","format":"html","latest_run_id":"01M7KZWMP9BHEPG1R852E9BEVV","sealed_key":"ApYUhzs5xTr6+OiKlPRttOwPM8ShQQYtIHyU1IlqjyOUiAxdbuhSNdKsG0l5372m/0iQk3CTb9uMZi9cMQD9yg==","created_at":"2026-11-17T05:32:46.665144Z","updated_at":"2026-11-17T05:32:46.665144Z","type":"regular","params":null,"name":null,"external_id":null,"metadata":null,"max_inflight":2,"max_per_host":null,"retries":3,"result_ttl_days":14,"runs":1,"pinned":null,"webhook":{"url":"https://127.0.0.1:28892/live","signature":true,"disabled_at":null},"schedule":null,"schedule_state":"active","next_fire_at":null,"skipped":0,"last_skipped_at":null,"last_batch":false,"version":1}',NULL);
CREATE TABLE replay (
    caller      TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    fingerprint BLOB    NOT NULL,
    status      INTEGER NOT NULL,
    body        BLOB    NOT NULL,
    expires_at  INTEGER NOT NULL,
    PRIMARY KEY (caller, key)
) STRICT, WITHOUT ROWID;
INSERT INTO "replay" VALUES('01M7KZVVSWA75A61ZRAZMD1BZF','the-same',X'5691923D57AA6D0676D6EDFC1EC534A4855383B142F8F2C4AFA9C42AADAC38B2',201,X'7B226A6F625F6964223A2230314D374B5A57443731334B414432454341384A434250333446222C22737461747573223A22636C6F736564222C226C61746573745F72756E223A7B2272756E5F6964223A2230314D374B5A57443731334B414432454341384D433950565643222C226A6F625F6964223A2230314D374B5A57443731334B414432454341384A434250333446222C2272756E5F73657175656E6365223A312C22737461747573223A2272756E6E696E67222C2274726967676572223A226D616E75616C222C227374617473223A7B22746F74616C223A372C22636F6D706C65746564223A302C227375636365737366756C223A302C226661696C6564223A302C227370656E64223A7B2263726564697473223A302C22636F7374223A302E307D7D2C226C6173745F62617463685F7265636569766564223A747275652C22637265617465645F6174223A22323032362D31312D31375430353A33323A33392E3030393835335A222C22757064617465645F6174223A22323032362D31312D31375430353A33323A33392E3030393835335A227D2C2261636365707465645F7461736B73223A372C22776562686F6F6B223A7B2275726C223A2268747470733A2F2F3132372E302E302E313A32383839322F656E646564222C227369676E6174757265223A747275657D7D',1794979959016586);
CREATE TABLE run (
    id      TEXT    NOT NULL PRIMARY KEY,
    job_id  TEXT    NOT NULL,
    live    INTEGER NOT NULL,
    version INTEGER NOT NULL,
    doc     TEXT    NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "run" VALUES('01M7KZWD713KAD2ECA8MC9PVVC','01M7KZWD713KAD2ECA8JCBP34F',0,2,'{"id":"01M7KZWD713KAD2ECA8MC9PVVC","job_id":"01M7KZWD713KAD2ECA8JCBP34F","caller":"01M7KZVVSWA75A61ZRAZMD1BZF","created_at":"2026-11-17T05:32:39.009853Z","updated_at":"2026-11-17T05:32:39.451764Z","total":7,"next_index":7,"sequence":1,"status":"completed","trigger":"manual","last_batch_received":true,"ingest_status":null,"pause_state":"active","failure_reason":null,"failure_detail":null,"inherited":{"counts":{"successful":0,"auth_failed":0,"blocked":0,"bad_target":0,"rate_limited":0,"timeout":0,"gateway_error":0,"other":0,"credits":0,"nanos":0},"idle":0,"sources":[]},"ingest_errors":0,"ingest_error":null,"is_cut":false,"frozen":{"successful":6,"auth_failed":0,"blocked":0,"bad_target":1,"rate_limited":0,"timeout":0,"gateway_error":0,"other":0,"credits":6,"nanos":600000},"sealed_token":"","version":2}');
INSERT INTO "run" VALUES('01M7KZWDZC4TY3HMQ05ZQ1424N','01M7KZWD713KAD2ECA8JCBP34F',0,2,'{"id":"01M7KZWDZC4TY3HMQ05ZQ1424N","job_id":"01M7KZWD713KAD2ECA8JCBP34F","caller":"01M7KZVVSWA75A61ZRAZMD1BZF","created_at":"2026-11-17T05:32:39.792387Z","updated_at":"2026-11-17T05:32:39.842722Z","total":7,"next_index":7,"sequence":2,"status":"completed","trigger":"manual","last_batch_received":true,"ingest_status":null,"pause_state":"active","failure_reason":null,"failure_detail":null,"inherited":{"counts":{"successful":6,"auth_failed":0,"blocked":0,"bad_target":0,"rate_limited":0,"timeout":0,"gateway_error":0,"other":0,"credits":0,"nanos":0},"idle":0,"sources":["01M7KZWD713KAD2ECA8MC9PVVC"]},"ingest_errors":0,"ingest_error":null,"is_cut":false,"frozen":{"successful":6,"auth_failed":0,"blocked":0,"bad_target":1,"rate_limited":0,"timeout":0,"gateway_error":0,"other":0,"credits":0,"nanos":0},"sealed_token":"","version":2}');
INSERT INTO "run" VALUES('01M7KZWE1H3MXC8EYK7E7WK5JF','01M7KZWE1H3MXC8EYK7E3NE1K5',0,2,'{"id":"01M7KZWE1H3MXC8EYK7E7WK5JF","job_id":"01M7KZWE1H3MXC8EYK7E3NE1K5","caller":"01M7KZVVSWA75A61ZRAZMD1BZF","created_at":"2026-11-17T05:32:39.857991Z","updated_at":"2026-11-17T05:32:39.959585Z","total":1,"next_index":1,"sequence":1,"status":"completed","trigger":"manual","last_batch_received":true,"ingest_status":null,"pause_state":"active","failure_reason":null,"failure_detail":null,"inherited":{"counts":{"successful":0,"auth_failed":0,"blocked":0,"bad_target":0,"rate_limited":0,"timeout":0,"gateway_error":0,"other":0,"credits":0,"nanos":0},"idle":0,"sources":[]},"ingest_errors":0,"ingest_error":null,"is_cut":false,"frozen":{"successful":1,"auth_failed":0,"blocked":0,"bad_target":0,"rate_limited":0,"timeout":0,"gateway_error":0,"other":0,"credits":1,"nanos":100000},"sealed_token":"","version":2}');
INSERT INTO "run" VALUES('01M7KZWFFK311F73TZR093S05X','01M7KZWFFK311F73TZQY3W333V',0,4,'{"id":"01M7KZWFFK311F73TZR093S05X","job_id":"01M7KZWFFK311F73TZQY3W333V","caller":"01M7KZVVSWA75A61ZRAZMD1BZF","created_at":"2026-11-17T05:32:41.331395Z","updated_at":"2026-11-17T05:32:41.507696Z","total":50,"next_index":51,"sequence":1,"status":"completed","trigger":"manual","last_batch_received":true,"ingest_status":"done","pause_state":"active","failure_reason":null,"failure_detail":null,"inherited":{"counts":{"successful":0,"auth_failed":0,"blocked":0,"bad_target":0,"rate_limited":0,"timeout":0,"gateway_error":0,"other":0,"credits":0,"nanos":0},"idle":0,"sources":[]},"ingest_errors":1,"ingest_error":null,"is_cut":false,"frozen":{"successful":50,"auth_failed":0,"blocked":0,"bad_target":0,"rate_limited":0,"timeout":0,"gateway_error":0,"other":0,"credits":50,"nanos":5000000},"sealed_token":"","version":4}');
INSERT INTO "run" VALUES('01M7KZWFNM80NKWJYJ35DN18QC','01M7KZWFNM80NKWJYJ34PDZSZQ',1,1,'{"id":"01M7KZWFNM80NKWJYJ35DN18QC","job_id":"01M7KZWFNM80NKWJYJ34PDZSZQ","caller":"01M7KZVVSWA75A61ZRAZMD1BZF","created_at":"2026-11-17T05:32:41.524240Z","updated_at":"2026-11-17T05:32:41.524240Z","total":1,"next_index":1,"sequence":1,"status":"running","trigger":"manual","last_batch_received":false,"ingest_status":null,"pause_state":"active","failure_reason":null,"failure_detail":null,"inherited":{"counts":{"successful":0,"auth_failed":0,"blocked":0,"bad_target":0,"rate_limited":0,"timeout":0,"gateway_error":0,"other":0,"credits":0,"nanos":0},"idle":0,"sources":[]},"ingest_errors":0,"ingest_error":null,"is_cut":false,"frozen":null,"sealed_token":"","version":1}');
INSERT INTO "run" VALUES('01M7KZWFPMC1WSCZXESWV904PX','01M7KZWFPMC1WSCZXESWEJ3V0H',1,2,'{"id":"01M7KZWFPMC1WSCZXESWV904PX","job_id":"01M7KZWFPMC1WSCZXESWEJ3V0H","caller":"01M7KZVVSWA75A61ZRAZMD1BZF","created_at":"2026-11-17T05:32:41.556314Z","updated_at":"2026-11-17T05:32:42.269433Z","total":8,"next_index":8,"sequence":1,"status":"running","trigger":"manual","last_batch_received":true,"ingest_status":null,"pause_state":"paused","failure_reason":null,"failure_detail":null,"inherited":{"counts":{"successful":0,"auth_failed":0,"blocked":0,"bad_target":0,"rate_limited":0,"timeout":0,"gateway_error":0,"other":0,"credits":0,"nanos":0},"idle":0,"sources":[]},"ingest_errors":0,"ingest_error":null,"is_cut":false,"frozen":null,"sealed_token":"","version":2}');
INSERT INTO "run" VALUES('01M7KZWHX73PABAF6TKTJMSVWB','01M7KZWHX73PABAF6TKS4C49F9',0,2,'{"id":"01M7KZWHX73PABAF6TKTJMSVWB","job_id":"01M7KZWHX73PABAF6TKS4C49F9","caller":"01M7KZVVSWA75A61ZRAZMD1BZF","created_at":"2026-11-17T05:32:43.815225Z","updated_at":"2026-11-17T05:32:44.515913Z","total":8,"next_index":8,"sequence":1,"status":"stopped","trigger":"manual","last_batch_received":true,"ingest_status":null,"pause_state":"active","failure_reason":null,"failure_detail":null,"inherited":{"counts":{"successful":0,"auth_failed":0,"blocked":0,"bad_target":0,"rate_limited":0,"timeout":0,"gateway_error":0,"other":0,"credits":0,"nanos":0},"idle":0,"sources":[]},"ingest_errors":0,"ingest_error":null,"is_cut":false,"frozen":null,"sealed_token":"","version":2}');
INSERT INTO "run" VALUES('01M7KZWMP9BHEPG1R852E9BEVV','01M7KZWMP9BHEPG1R851B2N5AS',1,1,'{"id":"01M7KZWMP9BHEPG1R852E9BEVV","job_id":"01M7KZWMP9BHEPG1R851B2N5AS","caller":"01M7KZVVSWA75A61ZRAZMD1BZF","created_at":"2026-11-17T05:32:46.665144Z","updated_at":"2026-11-17T05:32:46.665144Z","total":16,"next_index":16,"sequence":1,"status":"running","trigger":"manual","last_batch_received":true,"ingest_status":null,"pause_state":"active","failure_reason":null,"failure_detail":null,"inherited":{"counts":{"successful":0,"auth_failed":0,"blocked":0,"bad_target":0,"rate_limited":0,"timeout":0,"gateway_error":0,"other":0,"credits":0,"nanos":0},"idle":0,"sources":[]},"ingest_errors":0,"ingest_error":null,"is_cut":false,"frozen":null,"sealed_token":"","version":1}');
CREATE TABLE scrub (
    id      TEXT    NOT NULL PRIMARY KEY,  -- of the deleted job or run
    version INTEGER NOT NULL,
    doc     TEXT    NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "scrub" VALUES('01M7KZWKKZDNY1Q0KZTCTQQS5V',2,'{"id":"01M7KZWKKZDNY1Q0KZTCTQQS5V","job_id":"01M7KZWKKZDNY1Q0KZTCTQQS5V","sent_at":"2026-11-17T05:32:45.636521Z","run_id":null,"done_at":"2026-11-17T05:32:45.769372Z","version":2}');
CREATE TABLE shelf (
    no     INTEGER PRIMARY KEY AUTOINCREMENT,  -- a run's short name below, never used again
    run_id TEXT    NOT NULL UNIQUE,
    open   INTEGER NOT NULL DEFAULT 1  -- whether its tasks may be claimed
) STRICT;
INSERT INTO "shelf" VALUES(1,'01M7KZWD713KAD2ECA8MC9PVVC',0);
INSERT INTO "shelf" VALUES(2,'01M7KZWDZC4TY3HMQ05ZQ1424N',0);
INSERT INTO "shelf" VALUES(3,'01M7KZWE1H3MXC8EYK7E7WK5JF',0);
INSERT INTO "shelf" VALUES(4,'01M7KZWFFK311F73TZR093S05X',0);
INSERT INTO "shelf" VALUES(5,'01M7KZWFNM80NKWJYJ35DN18QC',1);
INSERT INTO "shelf" VALUES(6,'01M7KZWFPMC1WSCZXESWV904PX',1);
INSERT INTO "shelf" VALUES(7,'01M7KZWHX73PABAF6TKTJMSVWB',0);
INSERT INTO "shelf" VALUES(9,'01M7KZWMP9BHEPG1R852E9BEVV',1);
CREATE TABLE signing_keys (
    id      TEXT    NOT NULL PRIMARY KEY,  -- the caller
    version INTEGER NOT NULL,
    doc     TEXT    NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "signing_keys" VALUES('01M7KZVVSWA75A61ZRAZMD1BZF',2,'{"id":"01M7KZVVSWA75A61ZRAZMD1BZF","active":{"kid":"01M7KZWD5BA4G4JY7BYXXC0GNV","sealed_secret":"ApYUhzs5xTr6tOqMnf+cvh/9LqPyRDkj74RFqEaY9sjwremWEwBVWHB0mG4NgPzij945cln0UNgonEP7STrssprsp9DzOaOPro0fIAJ+SANn","created_at":"2026-11-17T05:32:38.957655Z"},"candidate":{"kid":"01M7KZWD5X4K3MCZYF3CMJN7GA","sealed_secret":"ApYUhzs5xTr6pnFrX80Hz/+85IDm0IHN1GDrNdkReksbp6BY0Ipw3d6dGxr+WLTUBxulr4NgF/3EmtFqGU76NIyNoQ/7TjgBrOOR20bODXjG","created_at":"2026-11-17T05:32:38.973463Z"},"version":2}');
CREATE TABLE task (
    shelf         INTEGER NOT NULL,
    idx           INTEGER NOT NULL,
    id            TEXT    NOT NULL,
    status        INTEGER NOT NULL,  -- 0 pending, 1 processing, 2 successful, 3 failed
    phase         INTEGER NOT NULL,  -- 0 open, 2 successful, 3 failed: what listings filter by
    due_at        INTEGER,
    claim_no      INTEGER NOT NULL,
    attempts      INTEGER NOT NULL,
    lost          INTEGER NOT NULL,
    claimed_at    INTEGER,
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    url           TEXT    NOT NULL,
    method        TEXT    NOT NULL,
    external_id   TEXT,
    metadata      TEXT,
    params        TEXT,
    body          TEXT,
    locator       TEXT,
    length        INTEGER,
    checksum      TEXT,
    format        TEXT,
    problem       TEXT,
    reason        TEXT,
    source_run_id TEXT,
    PRIMARY KEY (shelf, idx)
) STRICT, WITHOUT ROWID;
INSERT INTO "task" VALUES(1,0,'00000000-8f3be497d402ee589f72b69b',2,2,NULL,1,1,0,1794893559047463,1794893559010066,1794893559231567,'https://ok.example/0','GET','x0','{"number":"0"}',NULL,NULL,'pack:01M7KZWD713KAD2ECA8JCBP34F/01M7KZWD713KAD2ECA8MC9PVVC/00000000-8f3be497d402ee589f72b69b.1',2048,'2076491067980de2ef557df2914992816f0a8a45c91c9084ea2e77402947bc13','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(1,1,'00000001-85ce3f8b1c895785cd985c56',2,2,NULL,1,1,0,1794893559047463,1794893559010066,1794893559246536,'https://ok.example/1','GET','x1','{"number":"1"}',NULL,NULL,'pack:01M7KZWD713KAD2ECA8JCBP34F/01M7KZWD713KAD2ECA8MC9PVVC/00000001-85ce3f8b1c895785cd985c56.1',2048,'e231d368c8aa6aea6f8bbdda7258bea19175bca375c66d38d61a7058e1a4b883','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(1,2,'00000002-b0a078391159f71cfe06a7bc',2,2,NULL,1,1,0,1794893559047463,1794893559010066,1794893559246536,'https://ok.example/2','GET','x2','{"number":"2"}',NULL,NULL,'pack:01M7KZWD713KAD2ECA8JCBP34F/01M7KZWD713KAD2ECA8MC9PVVC/00000002-b0a078391159f71cfe06a7bc.1',2048,'dcccf5559306a938452157e92cb341b4d4fd96cf9564c2a235f2e51fdaacb87c','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(1,3,'00000003-90ac1c27052b6d6e661173ed',2,2,NULL,1,1,0,1794893559047463,1794893559010066,1794893559246536,'https://ok.example/3','GET','x3','{"number":"3"}',NULL,NULL,'pack:01M7KZWD713KAD2ECA8JCBP34F/01M7KZWD713KAD2ECA8MC9PVVC/00000003-90ac1c27052b6d6e661173ed.1',2048,'cbefed5e41037e5e1fecbe16a945204b1757b370b13f2897ec6655db9160ea08','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(1,4,'00000004-86c08763411e8b4eee1320cc',2,2,NULL,1,1,0,1794893559047463,1794893559010066,1794893559246536,'https://ok.example/4','GET','x4','{"number":"4"}',NULL,NULL,'pack:01M7KZWD713KAD2ECA8JCBP34F/01M7KZWD713KAD2ECA8MC9PVVC/00000004-86c08763411e8b4eee1320cc.1',2048,'a05e0154288c7a06b8dbe241cda7499463b860fec4287f9ad6c82c2c202c4b4d','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(1,5,'00000005-a8ed4fd1e9a30e325e750798',3,3,NULL,1,1,0,1794893559047463,1794893559010066,1794893559246536,'https://permanent.example/','GET',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{"code":"RESP002","detail":"Page not found. This is the mock gateway speaking.","instance":"/v1","status":404,"title":"Page not found (RESP002)","type":"https://docs.zenrows.com/api-error-codes#RESP002","gateway_request_id":"mock-7"}','bad_target',NULL);
INSERT INTO "task" VALUES(1,6,'00000006-7abc926ff28467e832fae225',2,2,NULL,2,2,0,1794893559444425,1794893559010066,1794893559450921,'https://flaky.example/?fails=1','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWD713KAD2ECA8JCBP34F/01M7KZWD713KAD2ECA8MC9PVVC/00000006-7abc926ff28467e832fae225.2',2048,'0df8d1b9fe42629f45dc172454fc100835046e053a8c30d5c158eaa9bcf2de04','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(2,0,'00000000-8f3be497d402ee589f72b69b',2,2,NULL,0,1,0,NULL,1794893559010066,1794893559231567,'https://ok.example/0','GET','x0','{"number":"0"}',NULL,NULL,'pack:01M7KZWD713KAD2ECA8JCBP34F/01M7KZWD713KAD2ECA8MC9PVVC/00000000-8f3be497d402ee589f72b69b.1',2048,'2076491067980de2ef557df2914992816f0a8a45c91c9084ea2e77402947bc13','html',NULL,NULL,'01M7KZWD713KAD2ECA8MC9PVVC');
INSERT INTO "task" VALUES(2,1,'00000001-85ce3f8b1c895785cd985c56',2,2,NULL,0,1,0,NULL,1794893559010066,1794893559246536,'https://ok.example/1','GET','x1','{"number":"1"}',NULL,NULL,'pack:01M7KZWD713KAD2ECA8JCBP34F/01M7KZWD713KAD2ECA8MC9PVVC/00000001-85ce3f8b1c895785cd985c56.1',2048,'e231d368c8aa6aea6f8bbdda7258bea19175bca375c66d38d61a7058e1a4b883','html',NULL,NULL,'01M7KZWD713KAD2ECA8MC9PVVC');
INSERT INTO "task" VALUES(2,2,'00000002-b0a078391159f71cfe06a7bc',2,2,NULL,0,1,0,NULL,1794893559010066,1794893559246536,'https://ok.example/2','GET','x2','{"number":"2"}',NULL,NULL,'pack:01M7KZWD713KAD2ECA8JCBP34F/01M7KZWD713KAD2ECA8MC9PVVC/00000002-b0a078391159f71cfe06a7bc.1',2048,'dcccf5559306a938452157e92cb341b4d4fd96cf9564c2a235f2e51fdaacb87c','html',NULL,NULL,'01M7KZWD713KAD2ECA8MC9PVVC');
INSERT INTO "task" VALUES(2,3,'00000003-90ac1c27052b6d6e661173ed',2,2,NULL,0,1,0,NULL,1794893559010066,1794893559246536,'https://ok.example/3','GET','x3','{"number":"3"}',NULL,NULL,'pack:01M7KZWD713KAD2ECA8JCBP34F/01M7KZWD713KAD2ECA8MC9PVVC/00000003-90ac1c27052b6d6e661173ed.1',2048,'cbefed5e41037e5e1fecbe16a945204b1757b370b13f2897ec6655db9160ea08','html',NULL,NULL,'01M7KZWD713KAD2ECA8MC9PVVC');
INSERT INTO "task" VALUES(2,4,'00000004-86c08763411e8b4eee1320cc',2,2,NULL,0,1,0,NULL,1794893559010066,1794893559246536,'https://ok.example/4','GET','x4','{"number":"4"}',NULL,NULL,'pack:01M7KZWD713KAD2ECA8JCBP34F/01M7KZWD713KAD2ECA8MC9PVVC/00000004-86c08763411e8b4eee1320cc.1',2048,'a05e0154288c7a06b8dbe241cda7499463b860fec4287f9ad6c82c2c202c4b4d','html',NULL,NULL,'01M7KZWD713KAD2ECA8MC9PVVC');
INSERT INTO "task" VALUES(2,5,'00000005-a8ed4fd1e9a30e325e750798',3,3,NULL,1,1,0,1794893559803289,1794893559790618,1794893559806145,'https://permanent.example/','GET',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{"code":"RESP002","detail":"Page not found. This is the mock gateway speaking.","instance":"/v1","status":404,"title":"Page not found (RESP002)","type":"https://docs.zenrows.com/api-error-codes#RESP002","gateway_request_id":"mock-10"}','bad_target',NULL);
INSERT INTO "task" VALUES(2,6,'00000006-7abc926ff28467e832fae225',2,2,NULL,0,2,0,NULL,1794893559010066,1794893559450921,'https://flaky.example/?fails=1','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWD713KAD2ECA8JCBP34F/01M7KZWD713KAD2ECA8MC9PVVC/00000006-7abc926ff28467e832fae225.2',2048,'0df8d1b9fe42629f45dc172454fc100835046e053a8c30d5c158eaa9bcf2de04','html',NULL,NULL,'01M7KZWD713KAD2ECA8MC9PVVC');
INSERT INTO "task" VALUES(3,0,'00000000-b63c7d2262d1089674a6fa8f',2,2,NULL,1,1,0,1794893559907306,1794893559858135,1794893559922335,'https://ok.example/refused','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWE1H3MXC8EYK7E3NE1K5/01M7KZWE1H3MXC8EYK7E7WK5JF/00000000-b63c7d2262d1089674a6fa8f.1',2048,'4b4a35fe05d2e6a01a46d100f06c8ef60524364c63f83a36c4bd8cb40312690b','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,0,'00000000-ae70a50271a7bab87680f40a',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561505154,'https://ok.example/list/0','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/00000000-ae70a50271a7bab87680f40a.1',2048,'6ed3911f5ce3a5b10350082447484110b5c75945506d415c2ba844f68be48bd2','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,1,'00000001-a2080f6c2a40d9b31b4622b3',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561505154,'https://ok.example/list/1','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/00000001-a2080f6c2a40d9b31b4622b3.1',2048,'520806ca9ad35e367914b3a3e75f3d6bcd17739bcef47a723d2889abec2a1f6b','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,2,'00000002-0a8c6916207c1b7f27d06041',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561505154,'https://ok.example/list/2','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/00000002-0a8c6916207c1b7f27d06041.1',2048,'0ba97ff04a89dd02158686b6e96f57c33cb52e1013399ba945d434abfe84e263','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,3,'00000003-7daf07cba8f553d825a636eb',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561505154,'https://ok.example/list/3','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/00000003-7daf07cba8f553d825a636eb.1',2048,'8258f145cf6cbc95bbfc8f1bf25c13e111086a05c70f67550a51e3460503db19','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,4,'00000004-7f5bd3b921e30630fed5e4ba',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561505154,'https://ok.example/list/4','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/00000004-7f5bd3b921e30630fed5e4ba.1',2048,'38d4fffd0cc0147a44170c369c0cbe685378126ecbaedebf410c14ad7dba13be','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,5,'00000005-944ee880fcf247acc0de8706',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561505154,'https://ok.example/list/5','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/00000005-944ee880fcf247acc0de8706.1',2048,'9ea7c8c4269d080322fd8ea74de82f6a1af0b874bd3a4e99fcbed6e7c15574e6','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,6,'00000006-b7cf0d037836c74fc73a1d37',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561505154,'https://ok.example/list/6','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/00000006-b7cf0d037836c74fc73a1d37.1',2048,'4e90cf21f82cf8f1a849c6b6f75a547f7bc4640f6d3576e3bae7e631b7b0e64d','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,7,'00000007-8a7d274f9720342776552cdd',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506172,'https://ok.example/list/7','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/00000007-8a7d274f9720342776552cdd.1',2048,'acfd06d3b7b4d859b88981f2dd904af22a0be4afff9c8d0a2b7c12eaad8c4d10','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,8,'00000008-cdc17a048f144a6cb7a4d419',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506172,'https://ok.example/list/8','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/00000008-cdc17a048f144a6cb7a4d419.1',2048,'56dbb27e12d21e76549505164c1793044af7489a1b15120eca0683a951193eb4','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,9,'00000009-509276c9d071e00230151cf1',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506172,'https://ok.example/list/9','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/00000009-509276c9d071e00230151cf1.1',2048,'e5bd2454017419cd563bf38ea345775e366f9eae12c430881af1cf763e0ce37f','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,10,'0000000a-1e60a2b0a553aceded5faba3',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506172,'https://ok.example/list/10','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/0000000a-1e60a2b0a553aceded5faba3.1',2048,'acc09d1d96cfb09c6ddebb6f5f1815f13cd97620a19d1c96e9cc67c3ab1db8e5','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,11,'0000000b-f282a2a880b7ff7f655292ec',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506172,'https://ok.example/list/11','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/0000000b-f282a2a880b7ff7f655292ec.1',2048,'d84cafe20da0f566a519ecd62f642d156c32ca3b5d224e3769bf4d74248fb69d','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,12,'0000000c-eae232d970488f2fe37b8c88',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506172,'https://ok.example/list/12','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/0000000c-eae232d970488f2fe37b8c88.1',2048,'52f6f2a0a4b2204453f19cfbc79a214964674a33250b2e63c1b0b51660e56e4e','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,13,'0000000d-ba6d1246106c02933f97ba12',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506172,'https://ok.example/list/13','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/0000000d-ba6d1246106c02933f97ba12.1',2048,'5342e136474748339bdb9efb6cb19c183b0a399c7911a2b1e83507b057ff81e5','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,14,'0000000e-4abd65e22847bea8debb82d4',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506172,'https://ok.example/list/14','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/0000000e-4abd65e22847bea8debb82d4.1',2048,'ecc785447bdee75cbac6547afd367571ff9e31944fa65b3a75a7259240d5dfec','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,15,'0000000f-0cbdbf3c7f0b89b62a9b8627',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506172,'https://ok.example/list/15','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/0000000f-0cbdbf3c7f0b89b62a9b8627.1',2048,'d4db1169a70442cb1304a8fe345a711e60f6080748cd5b8532fef1eef4eed720','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,16,'00000010-ab618476cc7f8a3bb7b24697',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506172,'https://ok.example/list/16','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/00000010-ab618476cc7f8a3bb7b24697.1',2048,'67acddaa3ade7b6a5a6947df4da45b98e48cdfbc32e276971365660b91036f4a','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,17,'00000011-7da8f569b8da90348b1b4e9c',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506172,'https://ok.example/list/17','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/00000011-7da8f569b8da90348b1b4e9c.1',2048,'49ab6d132ec7581360b1dcdbd8947bf9c6f333f908ce46f8c878fd2d7ca7bc49','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,18,'00000012-b5a579fb1c4a200700b29c24',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506172,'https://ok.example/list/18','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/00000012-b5a579fb1c4a200700b29c24.1',2048,'00c598b9a1490dfb03298c68aa95a5d07376406c7c0ab4f137c83b67e1082fc7','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,19,'00000013-f736f0e9d5cf2da76c134b49',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506172,'https://ok.example/list/19','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/00000013-f736f0e9d5cf2da76c134b49.1',2048,'504862d6d49c6c7677c192ff19dd33ac12090f44b73f5a62c820abb3860886e8','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,20,'00000014-db8a76b595f7e64df40c48bd',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506172,'https://ok.example/list/20','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/00000014-db8a76b595f7e64df40c48bd.1',2048,'8202d296c271d994c8dd7abef5dc7867f4535a1cce6d26c606f0e2f4076a92ea','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,21,'00000015-0b4311a50653824497ff73c9',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506172,'https://ok.example/list/21','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/00000015-0b4311a50653824497ff73c9.1',2048,'17a80d14e58b3b42a74c659ada085e5b96585536400e6ed4170faf26d053e873','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,22,'00000016-3556c17942a6eae34a14fdd6',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506172,'https://ok.example/list/22','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/00000016-3556c17942a6eae34a14fdd6.1',2048,'053b118c820de3376acaf87dd49888d4cbf6029ea5edb6894ee2f7ab788e3b46','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,23,'00000017-3776a795d29f9e918b439f78',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506172,'https://ok.example/list/23','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/00000017-3776a795d29f9e918b439f78.1',2048,'1344b90f2b9bcdb3cc15498907c6ad53456e51bd222c5474b40941f1037c6dc2','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,24,'00000018-f087748342cf9be35517f3ca',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506172,'https://ok.example/list/24','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/00000018-f087748342cf9be35517f3ca.1',2048,'9313545d8cfe80e94001bf3c41937b45ccd219c3921b08b58552f1cd612dcd4c','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,25,'00000019-c954223d522f85fd14a93a49',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506172,'https://ok.example/list/25','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/00000019-c954223d522f85fd14a93a49.1',2048,'e1992a7526a249d3c54cc43186a683df415141e9059afbfe202c68875c70e455','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,26,'0000001a-c374a54e1cb998b93bbeb144',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506172,'https://ok.example/list/26','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/0000001a-c374a54e1cb998b93bbeb144.1',2048,'21a25bfb5059ebddab16ee688c93de5f0136f798a273cab4353071c0f40713ab','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,27,'0000001b-169a366744bb065e82741cfc',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506172,'https://ok.example/list/27','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/0000001b-169a366744bb065e82741cfc.1',2048,'e8490115778c184ecafc79557214dc2804cb9b1027389cfa7899d76e681fc241','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,28,'0000001c-bf801027202ac80fa0bb5aac',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506172,'https://ok.example/list/28','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/0000001c-bf801027202ac80fa0bb5aac.1',2048,'54a35da1bacd46b5a53d4755871c1292f80491ce61940b7d0f5ca7391a6acbd8','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,29,'0000001d-bd8bb4337b851e4c059a14dc',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506172,'https://ok.example/list/29','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/0000001d-bd8bb4337b851e4c059a14dc.1',2048,'635a3bf178099857e01e548f0a1c60774a8e3aab63301e8fef64a511398367a8','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,30,'0000001e-792d671305ef5d5e88fd7845',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506172,'https://ok.example/list/30','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/0000001e-792d671305ef5d5e88fd7845.1',2048,'6650fe91d89aca220a7168a2494b475df88c769be88158b0ff908e5f4f65dd7c','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,31,'0000001f-65dc078678607b0820ab270b',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506172,'https://ok.example/list/31','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/0000001f-65dc078678607b0820ab270b.1',2048,'c497231f94c65db3eb4cc8bd99fa292ea12d9f3ff29f72211819aa75d56e92ed','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,32,'00000020-f1861157e1f75868ebb53bd5',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506172,'https://ok.example/list/32','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/00000020-f1861157e1f75868ebb53bd5.1',2048,'86881dd938b45de02c8f77f6c38532d9f6ac610e4b52d611c2a4bb57f2ad16e5','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,33,'00000021-36210c9a20c06bd978380bdf',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506172,'https://ok.example/list/33','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/00000021-36210c9a20c06bd978380bdf.1',2048,'8ca946af46db9297c77880dd417f994c1cd7a931fabaf14cc13a3474c1f20c89','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,34,'00000022-346074dd794564ddfb0463d6',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506172,'https://ok.example/list/34','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/00000022-346074dd794564ddfb0463d6.1',2048,'0686f1f9f0b89e420c9c5acb65982402dfae2db7757c9a3a9b998f5cf6f9abc0','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,35,'00000023-48644a17e99ca4d7de9233b6',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506172,'https://ok.example/list/35','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/00000023-48644a17e99ca4d7de9233b6.1',2048,'f3f41685c06322693cf2da6883668de9f7e7b90d8b4e699e3da838266bdb12a9','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,36,'00000024-d27ecf28ee779e37bb9ba396',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506172,'https://ok.example/list/36','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/00000024-d27ecf28ee779e37bb9ba396.1',2048,'ed5a72d429295019f3883eefbef3c52392a847ffb1cfc5763c8f26d2bad041f6','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,37,'00000025-f320a37aee40d6702d788186',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506172,'https://ok.example/list/37','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/00000025-f320a37aee40d6702d788186.1',2048,'407701a70583b70be1911f254d6fd4d0690eba18544c73b07c67a9de84ab3914','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,38,'00000026-30704768b30066f240261cdb',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506390,'https://ok.example/list/38','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/00000026-30704768b30066f240261cdb.1',2048,'d7be8356ae045863b4b6c491a6e54b441de06b30661d8b476bd84b01ace351ab','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,39,'00000027-011e318745aa344f47261ad1',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506390,'https://ok.example/list/39','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/00000027-011e318745aa344f47261ad1.1',2048,'d167d39043b6f00ca5e44a633a000a5e2491ea9b9d6381e8a1ddd6f3a1849dd6','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,40,'00000028-e08eb071e8a240d8818765eb',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506390,'https://ok.example/list/40','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/00000028-e08eb071e8a240d8818765eb.1',2048,'0b06a718e2d1bde8c220d5aed9b4a6ab6f18974af466f3651e7495d486e58aef','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,41,'00000029-a1fc7b38e5f19100602595d0',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506390,'https://ok.example/list/41','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/00000029-a1fc7b38e5f19100602595d0.1',2048,'4c10f308daccea3b903c50aed85c20da7661686d1779bc193399681e15bcb6be','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,42,'0000002a-7e46cc62e467503167cb4f57',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506390,'https://ok.example/list/42','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/0000002a-7e46cc62e467503167cb4f57.1',2048,'8a9c23b9530ac82e468fbc684bf1c9cef1924c17a7386982263a67e1322b70fc','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,43,'0000002b-8e2b898750fa4d23912e250e',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506390,'https://ok.example/list/43','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/0000002b-8e2b898750fa4d23912e250e.1',2048,'774d2bad790995340cda080a1f124bd70c30c06a8a19a5319df324c68caf2f5d','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,44,'0000002c-15fb1a42ba32eee23f989b7f',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506390,'https://ok.example/list/44','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/0000002c-15fb1a42ba32eee23f989b7f.1',2048,'6a1376eabe0b2fd7f41cc14d24a13bc00590f2deb2ea7d49c4bdb0ae6687e35a','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,45,'0000002d-78a3229d51a4ddb2557d37e5',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506390,'https://ok.example/list/45','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/0000002d-78a3229d51a4ddb2557d37e5.1',2048,'2925862f4865b851892e1eaa25c4646447b529860b32cc7e1d33a49a5ab7938a','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,46,'0000002e-d247a93c8d407f0196c8d179',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506390,'https://ok.example/list/46','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/0000002e-d247a93c8d407f0196c8d179.1',2048,'89655ba1f2d9157746a86cf4a53b5230998fef4fbf242e642c8701f10db6ce72','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,47,'0000002f-0e7bf094309f4829eab74178',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506390,'https://ok.example/list/47','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/0000002f-0e7bf094309f4829eab74178.1',2048,'6ab7dadb57620c6b63f9640afdb300415d7f9e9045f8bb46b0a36ecdcd599850','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,48,'00000030-c82f58b30543cb59aaa571b9',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506390,'https://ok.example/list/48','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/00000030-c82f58b30543cb59aaa571b9.1',2048,'49079a35c4c1ca81794fa5c7a4d6f9070df5e5a49e81f27b6b031f185a3c32b2','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(4,49,'00000031-a70bf1c7d10e94fd69a823f6',2,2,NULL,1,1,0,1794893561492801,1794893561447919,1794893561506390,'https://ok.example/list/49','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFFK311F73TZQY3W333V/01M7KZWFFK311F73TZR093S05X/00000031-a70bf1c7d10e94fd69a823f6.1',2048,'a1e4c5359bd6ef781efe3d0a6dac508290519cce132eff19e0b4405f2f6520dd','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(5,0,'00000000-cd4c480775821e6aa4d6565f',2,2,NULL,1,1,0,1794893561527433,1794893561524403,1794893561528953,'https://ok.example/open','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFNM80NKWJYJ34PDZSZQ/01M7KZWFNM80NKWJYJ35DN18QC/00000000-cd4c480775821e6aa4d6565f.1',2048,'75b6e2933681b2cda0a9bb50deb29ef2d6df111b8ac061b276c460ace4d16e3a','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(6,0,'00000000-18752ebc918bff7a1d126c69',2,2,NULL,1,1,0,1794893561718766,1794893561558074,1794893562157206,'https://slow.example/0?ms=400','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFPMC1WSCZXESWEJ3V0H/01M7KZWFPMC1WSCZXESWV904PX/00000000-18752ebc918bff7a1d126c69.1',2048,'31678917e5c50dbb88fc831ed23b701270912f373770fcfa791d2f0cca0221a6','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(6,1,'00000001-33ed5af210ee860431b63397',2,2,NULL,1,1,0,1794893562138430,1794893561558074,1794893562552548,'https://slow.example/1?ms=400','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWFPMC1WSCZXESWEJ3V0H/01M7KZWFPMC1WSCZXESWV904PX/00000001-33ed5af210ee860431b63397.1',2048,'a3e97d8c1da710930d0e2b43d025c3086a707915458da99346d245443779a57c','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(6,2,'00000002-c1e202b417ffe84b6655c740',0,0,1794893561558074,0,0,0,NULL,1794893561558074,1794893561558074,'https://slow.example/2?ms=400','GET',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "task" VALUES(6,3,'00000003-828f309b55daa77cbb78cad3',0,0,1794893561558074,0,0,0,NULL,1794893561558074,1794893561558074,'https://slow.example/3?ms=400','GET',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "task" VALUES(6,4,'00000004-2566f19347530c9852241c65',0,0,1794893561558074,0,0,0,NULL,1794893561558074,1794893561558074,'https://slow.example/4?ms=400','GET',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "task" VALUES(6,5,'00000005-21dd25f9b46678cd8e4a8605',0,0,1794893561558074,0,0,0,NULL,1794893561558074,1794893561558074,'https://slow.example/5?ms=400','GET',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "task" VALUES(6,6,'00000006-0bcc44c1328c973ad85adc53',0,0,1794893561558074,0,0,0,NULL,1794893561558074,1794893561558074,'https://slow.example/6?ms=400','GET',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "task" VALUES(6,7,'00000007-dde7265232dda3e88c7823d0',0,0,1794893561558074,0,0,0,NULL,1794893561558074,1794893561558074,'https://slow.example/7?ms=400','GET',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "task" VALUES(7,0,'00000000-da8d85371beebcb102489703',2,2,NULL,1,1,0,1794893563891886,1794893563815433,1794893564391664,'https://slow.example/s0?ms=300','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWHX73PABAF6TKS4C49F9/01M7KZWHX73PABAF6TKTJMSVWB/00000000-da8d85371beebcb102489703.1',2048,'7eaca72df67768feebd4b27143a3c4f6e9db5a23fdd19c6d308a005017b9f96a','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(7,1,'00000001-d4b90a5b95228785418db43f',2,2,NULL,1,1,0,1794893564453054,1794893563815433,1794893564806401,'https://slow.example/s1?ms=300','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWHX73PABAF6TKS4C49F9/01M7KZWHX73PABAF6TKTJMSVWB/00000001-d4b90a5b95228785418db43f.1',2048,'e6b83140786e170ca89ac8b735884b94c03116231f9183c3cfd3f9c4de645d86','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(7,2,'00000002-0f06e67d5ca09cb02ed278e7',0,0,1794893563815433,0,0,0,NULL,1794893563815433,1794893563815433,'https://slow.example/s2?ms=300','GET',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "task" VALUES(7,3,'00000003-c6f83ecb78b572e2579b0137',0,0,1794893563815433,0,0,0,NULL,1794893563815433,1794893563815433,'https://slow.example/s3?ms=300','GET',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "task" VALUES(7,4,'00000004-e8572454e8a269660e40ba95',0,0,1794893563815433,0,0,0,NULL,1794893563815433,1794893563815433,'https://slow.example/s4?ms=300','GET',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "task" VALUES(7,5,'00000005-d7cad157b85929ef767ef222',0,0,1794893563815433,0,0,0,NULL,1794893563815433,1794893563815433,'https://slow.example/s5?ms=300','GET',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "task" VALUES(7,6,'00000006-7d4d56570fe17036bee645a9',0,0,1794893563815433,0,0,0,NULL,1794893563815433,1794893563815433,'https://slow.example/s6?ms=300','GET',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "task" VALUES(7,7,'00000007-c99b16d7369ee980e8dd8d89',0,0,1794893563815433,0,0,0,NULL,1794893563815433,1794893563815433,'https://slow.example/s7?ms=300','GET',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "task" VALUES(9,0,'00000000-dc7dcad4e7b096dd34a4d2b9',2,2,NULL,1,1,0,1794893566690363,1794893566665309,1794893567235757,'https://slow.example/l0?ms=500','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWMP9BHEPG1R851B2N5AS/01M7KZWMP9BHEPG1R852E9BEVV/00000000-dc7dcad4e7b096dd34a4d2b9.1',2048,'6300f17df89276f91ec044f502ec5570527cb0316aae9ac4259763fe0c81cb45','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(9,1,'00000001-e01a97c7b44a8648ec9caee0',2,2,NULL,1,1,0,1794893566690363,1794893566665309,1794893567235757,'https://slow.example/l1?ms=500','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWMP9BHEPG1R851B2N5AS/01M7KZWMP9BHEPG1R852E9BEVV/00000001-e01a97c7b44a8648ec9caee0.1',2048,'c209166ba01f839d861b4567ed542b6940c114410450e72a59d57466330b21aa','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(9,2,'00000002-534b28c76f1da42a3bca2768',2,2,NULL,1,1,0,1794893567220957,1794893566665309,1794893567761758,'https://slow.example/l2?ms=500','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWMP9BHEPG1R851B2N5AS/01M7KZWMP9BHEPG1R852E9BEVV/00000002-534b28c76f1da42a3bca2768.1',2048,'c201038cdb970b1d9654949ae4b3586f18de342bc2a49cf03e5da0a6e8b001e8','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(9,3,'00000003-03bb3966040be130588e08b9',2,2,NULL,1,1,0,1794893567220957,1794893566665309,1794893567761758,'https://slow.example/l3?ms=500','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWMP9BHEPG1R851B2N5AS/01M7KZWMP9BHEPG1R852E9BEVV/00000003-03bb3966040be130588e08b9.1',2048,'66014ba3c0b62041f43f11d6d4e9ecb750835862acfcfdeca1e44838f7754cb6','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(9,4,'00000004-d3feaa850fac331aaa61a805',2,2,NULL,1,1,0,1794893567751407,1794893566665309,1794893568311616,'https://slow.example/l4?ms=500','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWMP9BHEPG1R851B2N5AS/01M7KZWMP9BHEPG1R852E9BEVV/00000004-d3feaa850fac331aaa61a805.1',2048,'b3ba83b9e26571a7785349792d2f886e50b516996a0f83cf64cafd0e23aaa14b','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(9,5,'00000005-bff00c6d6180d2d830fc0552',2,2,NULL,1,1,0,1794893567751407,1794893566665309,1794893568311616,'https://slow.example/l5?ms=500','GET',NULL,NULL,NULL,NULL,'pack:01M7KZWMP9BHEPG1R851B2N5AS/01M7KZWMP9BHEPG1R852E9BEVV/00000005-bff00c6d6180d2d830fc0552.1',2048,'60fe31d0a43de25513872d4e6122895a08a5b65da40a9edae40a64ba0e63c83d','html',NULL,NULL,NULL);
INSERT INTO "task" VALUES(9,6,'00000006-71c84cbc93247d29a1746827',1,0,1794893598302911,1,0,0,1794893568302911,1794893566665309,1794893568302911,'https://slow.example/l6?ms=500','GET',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "task" VALUES(9,7,'00000007-4ce6984c2422e5e47acba15b',1,0,1794893598302911,1,0,0,1794893568302911,1794893566665309,1794893568302911,'https://slow.example/l7?ms=500','GET',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "task" VALUES(9,8,'00000008-37141e505b0180598e86014e',0,0,1794893566665309,0,0,0,NULL,1794893566665309,1794893566665309,'https://slow.example/l8?ms=500','GET',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "task" VALUES(9,9,'00000009-e5f6d5b1621d831c7e2d6785',0,0,1794893566665309,0,0,0,NULL,1794893566665309,1794893566665309,'https://slow.example/l9?ms=500','GET',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "task" VALUES(9,10,'0000000a-1dc3931a4d469f9558c6d0dc',0,0,1794893566665309,0,0,0,NULL,1794893566665309,1794893566665309,'https://slow.example/l10?ms=500','GET',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "task" VALUES(9,11,'0000000b-3a3983d7b09a0a105fbb5d84',0,0,1794893566665309,0,0,0,NULL,1794893566665309,1794893566665309,'https://slow.example/l11?ms=500','GET',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "task" VALUES(9,12,'0000000c-ec583fa52777afcc295fdb89',0,0,1794893566665309,0,0,0,NULL,1794893566665309,1794893566665309,'https://slow.example/l12?ms=500','GET',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "task" VALUES(9,13,'0000000d-ec210dbe4f2062293f8cef50',0,0,1794893566665309,0,0,0,NULL,1794893566665309,1794893566665309,'https://slow.example/l13?ms=500','GET',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "task" VALUES(9,14,'0000000e-a1e85025a6be16993721947d',0,0,1794893566665309,0,0,0,NULL,1794893566665309,1794893566665309,'https://slow.example/l14?ms=500','GET',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "task" VALUES(9,15,'0000000f-1b290b790549ffd8d7bebd9a',0,0,1794893566665309,0,0,0,NULL,1794893566665309,1794893566665309,'https://slow.example/l15?ms=500','GET',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE INDEX job_by_caller ON job (caller, id);
CREATE INDEX run_by_job ON run (job_id, id);
CREATE INDEX run_live ON run (id) WHERE live = 1;
CREATE INDEX replay_by_expiry ON replay (expires_at);
CREATE INDEX task_due ON task (shelf, due_at, idx) WHERE status = 0;
CREATE INDEX task_held ON task (shelf, due_at, idx) WHERE status = 1;
CREATE INDEX task_by_phase ON task (shelf, phase, idx);
CREATE INDEX duty_due ON duty (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX duty_buried ON duty (buried_at) WHERE buried_at IS NOT NULL;
CREATE INDEX export_by_run ON export (doc ->> 'run_id');
CREATE INDEX job_by_fire ON job (fires_at, id) WHERE fires_at IS NOT NULL;
CREATE INDEX event_by_job ON event (job_id, id);
CREATE INDEX event_due ON event (channel, due_at, id) WHERE due_at IS NOT NULL;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('shelf',9);
COMMIT;
PRAGMA user_version=4;
PRAGMA application_id=0;
